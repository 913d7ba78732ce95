"""A made-up course of three tiny chapters, for tests of the grader.

It has the form of the real one and none of its subject. `write_course` writes it into a
directory; `write_target` and `write_starter` lay out what a learner's package is at a checkpoint.

    01-greeting  starter is collected, and its three tests fail: NotImplementedError
    02-counting  starter cannot be collected: `Count` is missing; has stretch tests
    03-farewell  the last chapter
"""

import shutil
from collections.abc import Mapping
from pathlib import Path

CHAPTERS = ("01-greeting", "02-counting", "03-farewell")

GREETING_TOML = """\
number = 1
title = "Greeting"
summary = "Say hello."
mode = "build"
minutes = 10
teaching_files = ["mini_agent/greet.py"]
given_files = ["mini_agent/__init__.py"]

[first_red]
outcome = "failed"
message = "NotImplementedError"

[first_step]
step = "1.1"
text = "Return the greeting from `hello`."

[[steps]]
id = "1.1"
title = "Say hello"
section = "A greeting"
expected = 2
files = ["mini_agent/greet.py"]
tests = [
    { name = "test_hello_names_the_person", title = "hello: names the person" },
    { name = "test_hello_keeps_spaces", title = "hello: keeps spaces" },
]
hints = ["What does an f-string do?", "Return f\\"hello {name}\\"."]

[[steps]]
id = "1.2"
title = "Be polite"
section = "Manners"
expected = 1
files = ["mini_agent/greet.py"]
tests = [{ name = "test_polite_adds_please", title = "polite: adds please" }]
hints = ["Build on hello.", "Return hello(name) and a comma and please."]

[[faults]]
name = "stripped"
title = "The name is stripped"
misconception = "You strip the name; a name is the caller's text."
section = "A greeting"
file = "mini_agent/greet.py"
find = 'return f"hello {name}"'
replace = 'return f"hello {name.strip()}"'
catches = [{ test = "test_hello_keeps_spaces", says = "a name is kept as it was given" }]

[[faults]]
name = "nameless"
title = "Everybody has one name"
misconception = "You greet the world and not the person."
section = "A greeting"
file = "mini_agent/greet.py"
find = 'return f"hello {name}"'
replace = 'return "hello world"'
catches = [
    { test = "test_hello_names_the_person", says = "the greeting holds the name" },
    { test = "test_hello_keeps_spaces", says = "a name is kept as it was given" },
    { test = "test_polite_adds_please", says = "please comes last" },
]

[[faults]]
name = "rude"
title = "No please"
misconception = "You forgot your manners."
section = "Manners"
file = "mini_agent/greet.py"
find = ', please"'
replace = '"'
catches = [{ test = "test_polite_adds_please", says = "please comes last" }]
"""

GREETING_README = """\
# Chapter 01 · Greeting

## A greeting

`hello("Ada")` is `hello Ada`.

## Manners

`polite("Ada")` is `hello Ada, please`.
"""

GREETING_STARTER = '''\
"""Greetings."""


def hello(name: str) -> str:
    """"hello", a space, the name."""
    raise NotImplementedError("step 1.1")


def polite(name: str) -> str:
    """The same, with please."""
    raise NotImplementedError("step 1.2")
'''

GREETING_SOLUTION = '''\
"""Greetings."""


def hello(name: str) -> str:
    """"hello", a space, the name."""
    return f"hello {name}"


def polite(name: str) -> str:
    """The same, with please."""
    return f"{hello(name)}, please"
'''

GREETING_TESTS = '''\
"""Focused tests of chapter 01."""

from grader.testing import assert_same
from mini_agent.greet import hello, polite


def test_hello_names_the_person() -> None:
    """A greeting holds the name (step 1.1)."""
    assert_same(hello("Ada"), "hello Ada", because="the greeting holds the name")


def test_hello_keeps_spaces() -> None:
    """A name is the caller's text (step 1.1)."""
    assert_same(hello(" Ada "), "hello  Ada ", because="a name is kept as it was given")


def test_polite_adds_please() -> None:
    """Please comes last (step 1.2)."""
    assert_same(polite("Ada"), "hello Ada, please", because="please comes last")
'''

COUNTING_TOML = '''\
number = 2
title = "Counting"
summary = "Count words."
mode = "extend"
minutes = 10
teaching_files = ["mini_agent/greet.py", "mini_agent/count.py"]
learner_adds = ["mini_agent/greet.py:Count"]

[first_red]
outcome = "not run"
message = "cannot import name 'Count'"

[first_step]
step = "2.1"
text = "Add `Count` to mini_agent/greet.py."

[[first_step.edits]]
file = "mini_agent/greet.py"
find = '"""Greetings."""'
replace = "\\"\\"\\"Greetings.\\"\\"\\"\\n\\n\\nclass Count: ..."

[[steps]]
id = "2.1"
title = "A count"
section = "What a count is"
expected = 1
files = ["mini_agent/greet.py"]
tests = [{ name = "test_count_holds_a_number", title = "count: holds a number" }]
hints = ["A class with one attribute.", "self.n = n"]

[[steps]]
id = "2.2"
title = "Count words"
section = "Words"
expected = 2
files = ["mini_agent/count.py"]
tests = [
    { name = "test_words_are_counted", title = "words: are counted" },
    { name = "test_words_none", title = "words: 没有词 is zero" },
]
hints = ["str.split", "Count(len(text.split()))"]

[[faults]]
name = "letters"
title = "Letters are counted"
misconception = "You count letters."
section = "Words"
file = "mini_agent/count.py"
find = "len(text.split())"
replace = "len(text)"
catches = [{ test = "test_words_are_counted", says = "two words" }]

[[faults]]
name = "one-more"
title = "Words are counted from one"
misconception = "You start at one."
section = "Words"
file = "mini_agent/count.py"
find = "len(text.split())"
replace = "len(text.split()) + 1"
catches = [
    { test = "test_words_are_counted", says = "two words" },
    { test = "test_words_none", says = "no words" },
]

[[faults]]
name = "forgets"
title = "The number is forgotten"
misconception = "You keep no number."
section = "What a count is"
file = "mini_agent/greet.py"
find = "self.n = n"
replace = "self.n = 0"
catches = [
    { test = "test_count_holds_a_number", says = "the number it was given" },
    { test = "test_words_are_counted", says = "two words" },
]
'''

COUNTING_README = """\
# Chapter 02 · Counting

## What a count is

A number with a name.

## Words

Words stand between spaces.
"""

COUNTING_STARTER = '''\
"""Counting."""

from mini_agent.greet import Count


def count_words(text: str) -> Count:
    """How many words."""
    raise NotImplementedError("step 2.2")
'''

COUNTING_GREET = (
    GREETING_SOLUTION
    + '''

class Count:
    """A number."""

    def __init__(self, n: int) -> None:
        self.n = n
'''
)

COUNTING_SOLUTION = '''\
"""Counting."""

from mini_agent.greet import Count


def count_words(text: str) -> Count:
    """How many words."""
    return Count(len(text.split()))
'''

COUNTING_TESTS = '''\
"""Focused tests of chapter 02."""

from grader.testing import assert_same
from mini_agent.count import count_words
from mini_agent.greet import Count


def test_count_holds_a_number() -> None:
    """A count holds its number (step 2.1)."""
    assert_same(Count(3).n, 3, because="the number it was given")


def test_words_are_counted() -> None:
    """Words stand between spaces (step 2.2)."""
    assert_same(count_words("two words").n, 2, because="two words")


def test_words_none() -> None:
    """An empty text has none (step 2.2)."""
    assert_same(count_words("").n, 0, because="no words")
'''

COUNTING_STRETCH = '''\
"""Stretch tests of chapter 02."""

import pytest

from grader.testing import assert_same
from mini_agent.count import count_words


@pytest.mark.parametrize("gap", [" ", "\\t", "\\n"], ids=["space", "tab", "newline"])
def test_any_gap(gap: str) -> None:
    """Any white space parts words (stretch)."""
    assert_same(count_words(f"a{gap}b").n, 2)


def test_many_words() -> None:
    """A long text (stretch)."""
    assert_same(count_words("a " * 1000).n, 1000)
'''

FAREWELL_TOML = """\
number = 3
title = "Farewell"
summary = "Say goodbye."
mode = "build"
minutes = 5
teaching_files = ["mini_agent/farewell.py"]

[first_red]
outcome = "failed"
message = "NotImplementedError"

[first_step]
step = "3.1"
text = "Return the farewell."

[[steps]]
id = "3.1"
title = "Say goodbye"
section = "Goodbye"
expected = 1
files = ["mini_agent/farewell.py"]
tests = [{ name = "test_goodbye", title = "goodbye: names the person" }]
hints = ["As hello.", "f-string"]

[[faults]]
name = "hello-again"
title = "Hello again"
misconception = "You say hello where goodbye is meant."
section = "Goodbye"
file = "mini_agent/farewell.py"
find = "goodbye {name}"
replace = "hello {name}"
catches = [{ test = "test_goodbye", says = "goodbye" }]
"""

FAREWELL_README = "# Chapter 03 · Farewell\n\n## Goodbye\n\nThe end.\n"

FAREWELL_STARTER = '''\
"""Farewells."""


def goodbye(name: str) -> str:
    """"goodbye", a space, the name."""
    raise NotImplementedError("step 3.1")
'''

FAREWELL_SOLUTION = FAREWELL_STARTER.replace(
    'raise NotImplementedError("step 3.1")', 'return f"goodbye {name}"'
)

FAREWELL_TESTS = '''\
"""Focused tests of chapter 03."""

from grader.testing import assert_same
from mini_agent.farewell import goodbye


def test_goodbye() -> None:
    """A farewell holds the name (step 3.1)."""
    assert_same(goodbye("Ada"), "goodbye Ada", because="goodbye")
'''

INIT = '"""The learner\'s package."""\n'

FILES: Mapping[str, str] = {
    "chapters/01-greeting/chapter.toml": GREETING_TOML,
    "chapters/01-greeting/README.md": GREETING_README,
    "chapters/01-greeting/starter/mini_agent/__init__.py": INIT,
    "chapters/01-greeting/starter/mini_agent/greet.py": GREETING_STARTER,
    "chapters/01-greeting/tests/test_01_greeting.py": GREETING_TESTS,
    "solutions/01-greeting/mini_agent/__init__.py": INIT,
    "solutions/01-greeting/mini_agent/greet.py": GREETING_SOLUTION,
    "chapters/02-counting/chapter.toml": COUNTING_TOML,
    "chapters/02-counting/README.md": COUNTING_README,
    "chapters/02-counting/starter/mini_agent/count.py": COUNTING_STARTER,
    "chapters/02-counting/tests/test_02_counting.py": COUNTING_TESTS,
    "chapters/02-counting/tests/stretch_02_counting.py": COUNTING_STRETCH,
    "solutions/02-counting/mini_agent/greet.py": COUNTING_GREET,
    "solutions/02-counting/mini_agent/count.py": COUNTING_SOLUTION,
    "chapters/03-farewell/chapter.toml": FAREWELL_TOML,
    "chapters/03-farewell/README.md": FAREWELL_README,
    "chapters/03-farewell/starter/mini_agent/farewell.py": FAREWELL_STARTER,
    "chapters/03-farewell/tests/test_03_farewell.py": FAREWELL_TESTS,
    "solutions/03-farewell/mini_agent/farewell.py": FAREWELL_SOLUTION,
}


def write_course(root: Path) -> Path:
    """Write the whole course under `root`, and return `root`."""
    write_files(root, FILES)
    return root


def write_files(root: Path, files: Mapping[str, str]) -> None:
    """Write `files`, relative paths to texts, under `root`; line ends stay as they are."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode())


def write_target(course: Path, number: int, directory: Path) -> Path:
    """The package as it is at the end of chapter `number`: solutions 1 to `number`, overlaid."""
    for slug in CHAPTERS[:number]:
        shutil.copytree(course / "solutions" / slug, directory, dirs_exist_ok=True)
    return directory


def write_starter(course: Path, number: int, directory: Path) -> Path:
    """What a learner of chapter `number` starts with: the parent, and the starter over it."""
    directory.mkdir(parents=True, exist_ok=True)
    write_target(course, number - 1, directory)
    starter = course / "chapters" / CHAPTERS[number - 1] / "starter"
    shutil.copytree(starter, directory, dirs_exist_ok=True)
    return directory


def edit(file: Path, find: str, replace: str) -> None:
    """Replace `find`, which stands in `file` exactly once."""
    content = file.read_text(encoding="utf-8")
    assert content.count(find) == 1, (file, find)
    file.write_bytes(content.replace(find, replace).encode())
