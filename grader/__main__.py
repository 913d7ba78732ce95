"""`python -m grader` is `grader`. Both start here, so that Ctrl+C is clean from the start."""

import sys


def main() -> int:
    try:
        from grader import cli

        return cli.main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
