"""Claims of the prose: commands that run, counts that are true, names and links that exist."""

import ast
import builtins
import functools
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grader.claims.claim import Claim, Job, Workspace
from grader.claims.command import Ended, run_command, shell
from grader.prose import Fence, Readme, read
from grader.runner import expected_stretch

_STEP_BOX = re.compile(r"^>\s*\*\*Step (?P<id>\d+\.\d+)\b")
_COUNT = re.compile(r"(?<![\w./-])(?P<done>\d+)/(?P<of>\d+)(?![\w./-])")
_WORDS = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    *("nineteen", "twenty"),
]
_FOCUSED = re.compile(r"\b(?P<count>\d+|" + "|".join(_WORDS) + r") focused tests\b", re.IGNORECASE)
_STRETCH = re.compile(r"\b(?P<count>\d+|" + "|".join(_WORDS) + r") stretch tests\b", re.IGNORECASE)
_CALL = re.compile(r"^(?:\w+\.)*(?P<name>\w+)\(\)$")
_FILE = re.compile(r"^(?:[\w.-]+/)+[\w.-]+\.(?:py|toml|txt|md|ipynb)$")
_UPSTREAM = re.compile(r"\bPi\b|upstream", re.IGNORECASE)
_SECONDS = 120.0


def jobs(space: Workspace) -> Iterator[Job]:
    """One job for the reading, and one for each command to run.

    A README that can't be read has no such jobs: the manifest's claims say so.
    """
    yield Job(space.number, "prose", lambda: written_claims(space))
    for number, fence in enumerate(_runnable(space), 1):
        yield Job(space.number, "prose", functools.partial(_ran, space, number, fence))


def written_claims(space: Workspace) -> Iterator[Claim]:
    """Everything that can be proved without running a command."""
    readme = read(space.chapter.readme)
    checks = {
        "counts": ("every quoted count is the manifest's", _counts(space, readme)),
        "links": ("every relative link leads somewhere", _links(space, readme)),
        "names": ("every file and function named in code exists", _names(space, readme)),
        "quotes": ("every block quoted from a file is a part of it", _quotes(space, readme)),
        "commands": ("every `grader` command quoted is one", _commands(readme)),
    }
    for part, (claim, problems) in checks.items():
        found = list(problems)
        yield Claim(
            id=f"{space.number}.prose.{part}",
            kind="prose",
            claim=claim,
            holds=not found,
            where=f"{space.where(space.chapter.readme)}:{found[0][0]}"
            if found
            else space.where(space.chapter.readme),
            found="; ".join(f"line {line}: {problem}" for line, problem in found),
            todo="correct the README, or what it speaks of",
        )


def _counts(space: Workspace, readme: Readme) -> Iterator[tuple[int, str]]:
    manifest = space.chapter.manifest
    expected = {step.id: step.expected for step in manifest.steps}
    total = sum(expected.values())
    stretch = len(expected_stretch(space.chapter))
    box: str | None = None
    for line, text in readme.lines:
        opened = _STEP_BOX.match(text)
        if opened:
            box = opened["id"]
            if box not in expected:
                yield line, f"there is no step {box}"
        elif not text.startswith(">"):
            box = None
        for count in _COUNT.finditer(text):
            right = {expected[box], total} if box in expected else {total, *expected.values()}
            if int(count["of"]) not in right:
                yield line, f"`{count[0]}` is none of {', '.join(map(str, sorted(right)))}"
        for pattern, there_are in ((_FOCUSED, total), (_STRETCH, stretch)):
            for count in pattern.finditer(text):
                if _number(count["count"]) != there_are:
                    yield line, f"`{count[0]}`: there are {there_are}"
    boxes = {m["id"] for _, text in readme.lines if (m := _STEP_BOX.match(text))}
    for step in sorted(expected.keys() - boxes):
        yield 1, f"no box treats step {step}"


def _number(word: str) -> int:
    return int(word) if word.isdigit() else _WORDS.index(word.lower())


def _links(space: Workspace, readme: Readme) -> Iterator[tuple[int, str]]:
    for line, target in readme.links:
        path, _, anchor = target.partition("#")
        if re.match(r"^[a-z][a-z+.-]*:", path):
            continue
        file = (space.chapter.readme.parent / path) if path else space.chapter.readme
        if not file.exists():
            yield line, f"`{path}` is not there"
        elif anchor and file.suffix == ".md" and anchor not in map(_anchor, read(file).headings):
            yield line, f"no heading gives `#{anchor}`"


def _anchor(heading: str) -> str:
    """A heading's anchor, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _names(space: Workspace, readme: Readme) -> Iterator[tuple[int, str]]:
    known = _identifiers(space.course.root)
    files = _file_names(space.course.root)
    upstream = False
    for line, text in readme.lines:
        if text.startswith("#"):  # a section on Pi names Pi's own functions and files
            upstream = bool(_UPSTREAM.search(text))
        for code in re.findall(r"`([^`]+)`", text):
            call, file = _CALL.match(code), _FILE.match(code)
            if call and not upstream and call["name"] not in known:
                yield line, f"there is no `{code}`"
            if file and not upstream and not any(f"/{name}".endswith(f"/{code}") for name in files):
                yield line, f"there is no `{code}`"


def _quotes(space: Workspace, readme: Readme) -> Iterator[tuple[int, str]]:
    for fence in readme.fences:
        name = fence.options.get("file")
        if name is None:
            continue
        file = next(
            (p for p in (space.target() / name, space.course.root / name) if p.is_file()), None
        )
        if file is None:
            yield fence.line, f"there is no `{name}`"
        elif fence.text.strip("\n") not in file.read_text(encoding="utf-8"):
            yield fence.line, f"the block is no part of `{name}`"


def _commands(readme: Readme) -> Iterator[tuple[int, str]]:
    from grader import cli  # at the top, cli and check would import each other

    quoted = [(line, code) for line, code in readme.code if code.startswith("grader ")]
    for fence in readme.fences:
        if fence.language == "sh":
            for offset, text in enumerate(fence.text.split("\n"), 1):
                for part in re.split(r"&&|\|\||;|\|", text):
                    if part.strip().startswith("grader "):
                        quoted.append((fence.line + offset, part.strip()))
    for line, command in quoted:
        problem = cli.problem_with(shlex.split(command, comments=True)[1:])
        if problem:
            yield line, f"`{command}`: {problem}"


def _runnable(space: Workspace) -> list[Fence]:
    fences = read(space.chapter.readme).fences
    return [fence for fence in fences if fence.language == "sh" and "run" in fence.options]


def _ran(space: Workspace, number: int, fence: Fence) -> list[Claim]:
    wanted = fence.options.get("exit", "0")
    with tempfile.TemporaryDirectory(
        dir=space.scratch, prefix="run-", ignore_cleanup_errors=True
    ) as scratch:
        found = _run_problem(space, fence.text, wanted, Path(scratch))
    return [
        Claim(
            id=f"{space.number}.prose.run-{number}",
            kind="prose",
            claim=f"`{(fence.text.strip() or 'nothing').splitlines()[0]}` runs"
            f" and ends with {wanted}",
            holds=not found,
            where=f"{space.where(space.chapter.readme)}:{fence.line}",
            found=found,
            todo="correct the command, or what it runs",
        )
    ]


def _run_problem(space: Workspace, script: str, wanted: str, directory: Path) -> str:
    if not script.strip():
        return "the fence is empty"
    if not wanted.isdigit():
        return f"`exit={wanted}` is no exit code"
    sh = shell()
    if sh is None:
        return "there is no POSIX shell `sh` to run it with; Git for Windows brings one"
    ended = run_shell(space, sh, script, directory)
    if ended.status is None:
        return f"no end after {_SECONDS:.0f} s"
    if ended.status == int(wanted):
        return ""
    printed = ended.output.decode("utf-8", "replace")
    return f"it ended with {ended.status}:\n{printed[-2000:]}"


def run_shell(space: Workspace, sh: str, script: str, directory: Path) -> Ended:
    """Run `script` in a folder of `directory`, with this grader and this Python first on the path.

    It ends at the first command that fails, so that a green last line hides nothing.
    """
    shims = directory / "bin"
    shims.mkdir()
    _shim(shims, [sys.executable, "-m", "grader", "--course", str(space.course.root)])
    work = directory / "work"
    work.mkdir()
    folders = (str(shims), str(Path(sys.executable).parent), os.environ.get("PATH", ""))
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().endswith("_API_KEY") and not name.upper().startswith("PYTHON")
    }
    environment |= {
        "PATH": os.pathsep.join(folders),
        "PYTHONUTF8": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(Path(__file__).resolve().parents[2]),  # where `grader` is
    }
    return run_command(
        [sh, "-e", "-c", script], cwd=work, env=environment, seconds=_SECONDS, stop=space.stop
    )


def _shim(shims: Path, command: list[str]) -> None:
    """`grader` as a command of the shell; also under Windows, where Git's shell runs it."""
    shim = shims / "grader"
    words = [word.replace("\\", "/") if os.name == "nt" else word for word in command]
    line = f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n'
    shim.write_text(line, encoding="utf-8", newline="")
    shim.chmod(0o755)


@functools.cache
def _identifiers(root: Path) -> frozenset[str]:
    """Every name that the course's Python files define or use, the grader's, and Python's own."""
    names = set(dir(builtins))
    for kind in (str, bytes, dict, list, tuple, set):
        names.update(dir(kind))
    grader = Path(__file__).parents[1]
    folders = [root / "solutions", root / "chapters", root / "notebooks", grader]
    for file in (f for folder in folders for f in folder.rglob("*.py")):
        try:
            tree = ast.parse(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue  # the chapter that it belongs to is told
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    names.add(name)
                case ast.ClassDef(name=name) | ast.Name(id=name) | ast.Attribute(attr=name):
                    names.add(name)
                case ast.alias(name=name):
                    names.update(name.split("."))
                case _:
                    pass
    return frozenset(names)


@functools.cache
def _file_names(root: Path) -> frozenset[str]:
    """Every file of the course, from its root."""
    folders = ("chapters", "solutions", "notebooks", "grader", "tests")
    return frozenset(
        path.relative_to(root).as_posix()
        for folder in folders
        for path in (root / folder).rglob("*")
        if path.is_file()
    )
