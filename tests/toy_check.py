"""The made-up course of toy_course, with all that `grader check` looks at: every claim holds."""

from pathlib import Path

from toy_course import FAREWELL_TOML, write_course, write_files

GREETING_README = """\
# Chapter 01 · Greeting

Three focused tests, at the end `3/3`. Then comes [counting](../02-counting/README.md#words).

## A greeting

`hello()` stands in `mini_agent/greet.py`:

```python file=mini_agent/greet.py
def hello(name: str) -> str:
```

> **Step 1.1 · Say hello** (5 minutes)
>
> Run `grader test mydir --step 1.1`. Expect `2/2`.

## Manners

> **Step 1.2 · Be polite** (5 minutes)
>
> Expect `1/1`.

```sh run exit=1
grader practice 01 mydir
```
"""

COUNTING_README = """\
# Chapter 02 · Counting

## What a count is

> **Step 2.1 · A count** (5 minutes)
>
> Expect `1/1`.

## Words

> **Step 2.2 · Count words** (5 minutes)
>
> Expect `2/2`.

There are two stretch tests.
"""

FAREWELL_README = """\
# Chapter 03 · Farewell

## Goodbye

> **Step 3.1 · Say goodbye** (5 minutes)
>
> Expect `1/1`.
"""

SAY = '''\
"""Say goodbye."""

from mini_agent.farewell import goodbye

print(goodbye("Ada"))
'''
SAID = "goodbye Ada\n"

FILES = {
    "chapters/01-greeting/README.md": GREETING_README,
    "chapters/02-counting/README.md": COUNTING_README,
    "chapters/03-farewell/README.md": FAREWELL_README,
    "chapters/03-farewell/chapter.toml": FAREWELL_TOML.replace(
        '["mini_agent/farewell.py"]\n\n',
        '["mini_agent/farewell.py"]\ngiven_files = ["mini_agent/__main__.py", "said.txt"]\n\n',
    )
    + """
[[recordings]]
command = ["python", "-m", "mini_agent"]
file = "said.txt"
""",
    "chapters/03-farewell/starter/mini_agent/__main__.py": SAY,
    "chapters/03-farewell/starter/said.txt": SAID,
    "solutions/03-farewell/mini_agent/__main__.py": SAY,
    "solutions/03-farewell/said.txt": SAID,
}


def write_checked_course(root: Path) -> Path:
    """Write the course under `root`, and return `root`."""
    write_course(root)
    write_files(root, FILES)
    return root
