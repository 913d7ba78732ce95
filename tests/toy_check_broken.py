"""What can be wrong with the made-up course, and which claims say so: the table of test_check.py."""
# ruff: noqa: E501  # an edit is read best on one line

import dataclasses
from collections.abc import Mapping

from grader.claims.claim import Kind

GREET = "mini_agent/greet.py"
ONE, TWO, THREE = (f"chapters/{slug}" for slug in ("01-greeting", "02-counting", "03-farewell"))
DONE_1, DONE_2, DONE_3 = (f"solutions/{chapter[9:]}" for chapter in (ONE, TWO, THREE))


@dataclasses.dataclass(frozen=True)
class Broken:
    """Edits of the good course, the claims that then fail, and what each of them says."""

    chapter: str  # "": all of them
    only: tuple[Kind, ...]
    edits: tuple[tuple[str, str, str], ...]  # file, find, replace; nothing to find: write the file
    fails: Mapping[str, tuple[str, ...]]  # id: parts of `where` and `found`


BROKEN = {
    "manifest: unknown key": Broken(
        "1",
        ("manifest",),
        ((f"{ONE}/chapter.toml", "minutes = 10", "minuets = 10"),),
        {"01.manifest.form": (f"{ONE}/chapter.toml", "unknown key `minuets`")},
    ),
    "manifest: all that is wrong at once": Broken(
        "1",
        ("fault",),  # whatever was asked for: what cannot be looked at does not hold
        (
            (f"{ONE}/chapter.toml", f'given_files = ["{GREET[:11]}__init__.py"]', 'given_files = ["x.py"]'),
            (f"{ONE}/chapter.toml", 'section = "Manners"\nexpected = 1', 'section = "Rudeness"\nexpected = 2'),
            (f"{ONE}/chapter.toml", '{ name = "test_polite_adds_please", title', '{ name = "test_gone", title'),
            (f"{ONE}/chapter.toml", 'file = "mini_agent/greet.py"\nfind = \', please"\'', 'file = "lost.py"\nfind = "x"'),
        ),
        {
            "01.manifest.files": ("given_files: missing file solutions/01-greeting/x.py",),
            "01.manifest.steps": ("says 2 and lists 1", "no heading `Rudeness`"),
            "01.manifest.tests": ("`test_gone` is not in", "belongs to no step"),
            "01.manifest.faults": ("missing file lost.py", "no test `test_polite_adds_please`"),
        },
    ),
    "manifest: a README that is no text": Broken(
        "1",
        ("prose",),
        ((f"{ONE}/README.md", "Then comes", "\udcff"),),
        {"01.manifest.files": (f"{ONE}/README.md cannot be read: it is not UTF-8",)},
    ),
    "manifest: a folder without a manifest": Broken(
        "",
        ("manifest",),
        (("chapters/04-later/README.md", "", "# Later\n"),),
        {"00.manifest.folders": ("chapters/04-later", "has no chapters/…/chapter.toml")},
    ),
    "overlay: files": Broken(
        "2",
        ("overlay",),
        (
            (f"{DONE_2}/mini_agent/__init__.py", "", '"""The learner\'s package."""\n'),
            (f"{TWO}/starter/mini_agent/stray.py", "", "x = 1\n"),
        ),
        {
            "02.overlay.listed": (f"{TWO}/chapter.toml:6", "`mini_agent/__init__.py` is changed and not listed"),
            "02.overlay.changed": (f"{DONE_2}/mini_agent/__init__.py", "is the same"),
            "02.overlay.starter": (f"{TWO}/starter/mini_agent/stray.py", "has no counterpart"),
        },
    ),
    "overlay: a given file that is not the solution's": Broken(
        "1",
        ("overlay",),
        ((f"{ONE}/starter/mini_agent/__init__.py", "package", "bag"),),
        {"01.overlay.given": (f"{ONE}/chapter.toml:7", "differs from the solution")},
    ),
    "signature": Broken(
        "2",
        ("signature",),
        (
            (f"{TWO}/starter/mini_agent/count.py", "text: str", "words: str"),
            (f"{TWO}/chapter.toml", '["mini_agent/greet.py:Count"]', '["mini_agent/greet.py:Cuont"]'),
        ),
        {
            "02.signature.mini_agent/count.py": (
                f"{TWO}/starter/mini_agent/count.py",
                "def count_words(words: str) -> Count",
                "def count_words(text: str) -> Count",
            ),
            "02.signature.mini_agent/greet.py": ("`Count` is not in the starter",),
            "02.signature.learner-adds": (f"{TWO}/chapter.toml:7", "`mini_agent/greet.py:Cuont`"),
        },
    ),
    "red: a starter that does some of the work": Broken(
        "1",
        ("red",),
        ((f"{ONE}/starter/{GREET}", 'NotImplementedError("step 1.2")', 'ValueError("later")'),
         (f"{ONE}/starter/{GREET}", 'raise NotImplementedError("step 1.1")', 'return f"hello {name}"'),),
        {
            "01.red.starter": (f"{ONE}/chapter.toml:", "`test_hello_names_the_person` passes"),
            "01.red.first": ("2 tests are not `failed`, first `test_hello_names_the_person`: passed",),
            "01.red.first-step": ("`test_hello_names_the_person` passes",),
        },
    ),
    "red: another first red than the stated one": Broken(
        "1",
        ("red",),
        ((f"{ONE}/starter/{GREET}", 'NotImplementedError("step 1.1")', 'ValueError("step 1.1")'),),
        {"01.red.first": (f"{ONE}/chapter.toml:", "the report says: ValueError: step 1.1")},
    ),
    "red: not run, for another reason": Broken(
        "2",
        ("red",),
        ((f"{TWO}/starter/mini_agent/count.py", "import Count", "import Cuont"),),
        {
            "02.red.first": ("the report says: cannot import name 'Cuont'",),
            "02.red.first-step": ("tests are not run: cannot import name 'Cuont'",),
            "02.red.collected": ("pytest ended with 2",),
        },
    ),
    "red: an edit that does not fit, a test that fails by an import": Broken(
        "3",
        ("red",),
        (
            (f"{THREE}/starter/mini_agent/farewell.py", "    raise NotImplementedError", "    import nothing_of_this_name\n    raise NotImplementedError"),
            (f"{THREE}/tests/test_03_farewell.py", "def test_goodbye() -> None:\n    \"\"\"A farewell holds the name (step 3.1).\"\"\"\n", "@pytest.mark.parametrize('name', ['Ada', 'Bob'])\ndef test_goodbye(name: str) -> None:\n"),
            (f"{THREE}/tests/test_03_farewell.py", "from grader", "import pytest\n\nfrom grader"),
        ),
        {
            "03.red.first": ("nothing_of_this_name",),
            "03.red.first-step": ("`test_goodbye` fails by an import", "No module named",),
            "03.red.collected": ("`tests/test_03_farewell.py::test_goodbye[Ada]` is collected", "`tests/test_03_farewell.py::test_goodbye` is not collected"),
        },
    ),
    "red: a first step that fits nowhere": Broken(
        "2",
        ("red",),
        ((f"{TWO}/chapter.toml", "find = '\"\"\"Greetings.\"\"\"'", "find = '\"\"\"Hellos.\"\"\"'"),),
        {
            "02.red.first-step": (f"{TWO}/chapter.toml:", "stands 0 times in `mini_agent/greet.py`"),
            "02.red.collected": ("does not fit",),
        },
    ),
    "red: a given file that breaks what was green": Broken(
        "3",
        ("red",),
        (
            (f"{THREE}/chapter.toml", 'given_files = [', 'given_files = ["mini_agent/__init__.py", '),
            (f"{THREE}/starter/mini_agent/__init__.py", "", "import mini_agent.count\n\ndel mini_agent.count.count_words\n"),
            (f"{DONE_3}/mini_agent/__init__.py", "", "import mini_agent.count\n\ndel mini_agent.count.count_words\n"),
        ),
        {"03.red.parent": (f"{THREE}/chapter.toml:", "cannot import name 'count_words'")},
    ),
    "green: a later overlay drops an earlier fix": Broken(
        "2",
        ("green",),
        ((f"{DONE_2}/{GREET}", ', please"', '"'),),
        {
            "02.green.seed-1": (DONE_2, "`test_polite_adds_please`", "please comes last"),
            "02.green.seed-2": (DONE_2, "`test_polite_adds_please`", "please comes last"),
        },
    ),
    "green: a stretch test": Broken(
        "2",
        ("green",),
        ((f"{TWO}/tests/stretch_02_counting.py", '"a " * 1000).n, 1000', '"a " * 1000).n, 999'),),
        {
            "02.green.seed-1": ("`test_many_words`", "999"),
            "02.green.seed-2": ("`test_many_words`",),
        },
    ),
    "fault: not as it says": Broken(
        "1",
        ("fault",),
        (
            (f"{ONE}/chapter.toml", 'says = "a name is kept as it was given" }]', 'says = "a name is trimmed" }]'),
            (f"{ONE}/chapter.toml", '    { test = "test_polite_adds_please", says = "please comes last" },\n', ""),
            (f"{ONE}/chapter.toml", "find = ', please\"'", "find = ', thanks\"'"),
        ),
        {
            "01.fault.stripped": (f"{ONE}/chapter.toml:39", "`test_hello_keeps_spaces` says: ", "a name is kept"),
            "01.fault.nameless": (f"{ONE}/chapter.toml:49", "`test_polite_adds_please` fails too: "),
            "01.fault.rude": (f"{ONE}/chapter.toml:62", "stands 0 times"),
        },
    ),
    "fault: a test that it does not fail, and tests that are not run": Broken(
        "1",
        ("fault",),
        (
            (f"{ONE}/chapter.toml", 'catches = [{ test = "test_polite_adds_please"', 'catches = [{ test = "test_hello_keeps_spaces", says = "" }, { test = "test_polite_adds_please"'),
            (f"{ONE}/chapter.toml", "replace = 'return \"hello world\"'", "replace = 'return ('"),
            (f"{ONE}/chapter.toml", "replace = 'return f\"hello {name.strip()}\"'", "replace = 'raise NotImplementedError'"),
        ),
        {
            "01.fault.rude": ("`test_hello_keeps_spaces` passes",),
            "01.fault.nameless": ("the tests are not run: SyntaxError in mini_agent/greet.py:6",),
            "01.fault.stripped": ("fails too: NotImplementedError", "no learner is told"),
        },
    ),
    "fault: two that look alike, and a test that catches none": Broken(
        "2",
        ("fault",),
        (
            (f"{TWO}/chapter.toml", 'replace = "len(text.split()) + 1"\ncatches = [\n    { test = "test_words_are_counted", says = "two words" },\n    { test = "test_words_none", says = "no words" },\n]', 'replace = "len(text[:9])"\ncatches = [{ test = "test_words_are_counted", says = "two words" }]'),
        ),
        {
            "02.fault.letters.told-apart": (f"{TWO}/chapter.toml:", "`one-more` fails the same tests"),
            "02.fault.one-more.told-apart": ("`letters` fails the same tests",),
            "02.fault.each-test": (f"{TWO}/chapter.toml:", "`test_words_none` catches none"),
        },
    ),
    "fault: unfinished work looks like it": Broken(
        "3",
        ("fault",),
        ((f"{THREE}/chapter.toml", 'find = "goodbye {name}"\nreplace = "hello {name}"', "find = 'return f\"goodbye {name}\"'\nreplace = 'return None'"),),
        {"03.fault.unfinished": (f"{THREE}/chapter.toml:", "0 steps done, every other body returns None: looks like `hello-again`")},
    ),
    "survivor": Broken(
        "2",
        ("survivor",),
        (
            (f"{TWO}/tests/test_02_counting.py", "Count(3).n, 3", "3, 3"),
            (f"{TWO}/tests/test_02_counting.py", 'count_words("two words").n, 2', "2, 2"),
            (f"{TWO}/tests/test_02_counting.py", 'count_words("").n, 0', "0, 0"),
            (f"{TWO}/tests/stretch_02_counting.py", "count_words(f\"a{gap}b\").n", "2"),
            (f"{TWO}/tests/stretch_02_counting.py", 'count_words("a " * 1000).n', "1000"),
            (f"{TWO}/chapter.toml", "[first_red]", '[mutants.excluded]\n"mini_agent/count.py: gone -> gone" = "It was equivalent."\n"mini_agent/greet.py: self.n = n -> self.n = None" = ""\n\n[first_red]'),
        ),
        {
            "02.survivor.score": (f"{TWO}/chapter.toml", "0.0% of 1 are", "mini_agent/count.py: return Count(len(text.split())) -> return Count(None)"),
            "02.survivor.excluded": (f"{TWO}/chapter.toml:", "there is no `mini_agent/count.py: gone -> gone`", "has no reason"),
        },
    ),
    "survivor: a target that is not green": Broken(
        "2",
        ("survivor",),
        ((f"{TWO}/tests/test_02_counting.py", "Count(3).n, 3", "Count(3).n, 4"),),
        {"02.survivor.score": ("`test_count_holds_a_number` is failed without any mutant",)},
    ),
    "prose: what can be read": Broken(
        "1",
        ("prose",),
        (
            (f"{ONE}/README.md", "Three focused tests, at the end `3/3`", "Four focused tests, at the end `4/4`"),
            (f"{ONE}/README.md", "Expect `1/1`", "Expect `2/2`"),
            (f"{ONE}/README.md", "README.md#words", "README.md#letters"),
            (f"{ONE}/README.md", "`hello()` stands in `mini_agent/greet.py`", "`hallo()` stands in `mini_agent/great.py`"),
            (f"{ONE}/README.md", "def hello(name: str) -> str:", "def hello(name):"),
            (f"{ONE}/README.md", "grader test mydir --step 1.1", "grader test mydir --stage 1.1"),
            (f"{ONE}/README.md", "exit=1\ngrader practice 01 mydir", "exit=0\ngrader practice 01 mydir\necho done"),
        ),
        {
            "01.prose.counts": (f"{ONE}/README.md:3", "`4/4` is none of 1, 2, 3", "`Four focused tests`: there are 3", "line 21: `2/2` is none of 1, 3"),
            "01.prose.links": (f"{ONE}/README.md:3", "no heading gives `#letters`"),
            "01.prose.names": (f"{ONE}/README.md:7", "there is no `hallo()`", "there is no `mini_agent/great.py`"),
            "01.prose.quotes": (f"{ONE}/README.md:9", "the block is no part of `mini_agent/greet.py`"),
            "01.prose.commands": (f"{ONE}/README.md:15", "no such option"),
            "01.prose.run-1": (f"{ONE}/README.md:23", "it ended with 1", "Checkpoint 01"),
        },
    ),
    "prose: links and boxes": Broken(
        "2",
        ("prose",),
        (
            (f"{TWO}/README.md", "**Step 2.1", "**Step 2.7"),
            (f"{TWO}/README.md", "two stretch tests", "3 stretch tests"),
            (f"{TWO}/README.md", "## Words", "## Words\n\n[gone](gone.md)"),
        ),
        {
            "02.prose.counts": ("there is no step 2.7", "no box treats step 2.1", "`3 stretch tests`: there are 2"),
            "02.prose.links": ("`gone.md` is not there",),
        },
    ),
    "demo": Broken(
        "3",
        ("demo",),
        (
            (f"{DONE_3}/said.txt", "goodbye", "farewell"),
            (f"{THREE}/chapter.toml", "[[recordings]]", '[[recordings]]\ncommand = ["python", "-c", "raise SystemExit(3)"]\nfile = "mini_agent/farewell.py"\n\n[[recordings]]'),
        ),
        {
            "03.demo.said.txt": (f"{DONE_3}/said.txt", "line 1 is printed as 'goodbye Ada' and recorded as 'farewell Ada'"),
            "03.demo.mini_agent/farewell.py": ("it ended with 3",),
        },
    ),
    "broken: a solution that is no Python": Broken(
        "1",
        ("signature", "fault"),
        ((f"{DONE_1}/{GREET}", "def polite", "def def polite"),),
        {
            "01.signature.broken": ("greet.py:9", "SyntaxError"),
            "01.fault.stripped": ("the tests are not run",),
            "01.fault.nameless": (),
            "01.fault.rude": (),
            "01.fault.broken": (),
        },
    ),
}  # fmt: skip
