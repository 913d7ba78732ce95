"""`python -m mini_agent`."""

import sys

from mini_agent.main import main

raise SystemExit(main(sys.argv[1:]))
