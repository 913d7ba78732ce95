"""Reading a README: headings, fences, links and code spans."""

from pathlib import Path

import pytest

from grader.prose import Fence, Readme, read

TEXT = """\
# Title

Some `code()` and a [link](../a.md#b), an ![image](<x y.png>) and `[none](in-code)`.

```sh run exit=1
# no heading
grader list
```

> ## In a box
>
> ```python file=a.py
> def f() -> None:
>     pass
> ```
>
> after

````markdown
```sh run
nested
```
````

~~~
`not code`
~~~

## Last #
"""


@pytest.fixture
def readme(tmp_path: Path) -> Readme:
    file = tmp_path / "README.md"
    file.write_text(TEXT, encoding="utf-8")
    return read(file)


def test_fences(readme: Readme) -> None:
    """Each fence with its line, its words and its text: in a quote, and one inside another."""
    assert readme.fences == (
        Fence(5, "sh run exit=1", "# no heading\ngrader list"),
        Fence(12, "python file=a.py", "def f() -> None:\n    pass"),
        Fence(19, "markdown", "```sh run\nnested\n```"),
        Fence(25, "", "`not code`"),
    )


def test_options(readme: Readme) -> None:
    """The first word is the language, the others are options."""
    first, second, *_, last = readme.fences

    assert (first.language, first.options) == ("sh", {"run": "", "exit": "1"})
    assert (second.language, second.options) == ("python", {"file": "a.py"})
    assert (last.language, last.options) == ("", {})


def test_headings_links_and_code_stand_outside_of_fences(readme: Readme) -> None:
    """A # in a fence is no heading, and a link in a code span is none."""
    assert readme.headings == {"Title": 1, "Last": 29}
    assert readme.links == [(3, "../a.md#b"), (3, "x y.png")]
    assert readme.code == [(3, "code()"), (3, "[none](in-code)")]
