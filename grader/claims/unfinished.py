"""Claim that no half-finished solution looks like a planted fault.

Half-finished: the functions of the first steps as the solution has them, the others not written.
A body that is not written raises NotImplementedError, as the starter's, or returns None or an
empty text, as a learner's first attempt may.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from grader import misconceptions
from grader.claims.claim import Claim, EditError, Job, Workspace
from grader.course import Fault
from grader.misconceptions import message
from grader.results import Run, TestResult
from grader.runner import expected_focused

Stub: TypeAlias = Literal["raises", "returns None", "returns ''"]
STUBS: tuple[Stub, ...] = get_args(Stub)
CHECKED: tuple[Stub, ...] = ("raises", "returns None")  # by check; the course's own test has all

_STEP = re.compile(r"step (\d+\.\d+)")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Half:
    """A solution with `done` steps written, and `files` changed so that the others are not."""

    done: int
    stub: Stub
    files: dict[str, str]

    def __str__(self) -> str:
        steps = "step" if self.done == 1 else "steps"
        return f"{self.done} {steps} done, every other body {self.stub}"


@dataclass(frozen=True, slots=True)
class _Body:
    """Lines of a file that a learner writes in some step: `first` to `last`, counted from one."""

    step: str
    first: int
    last: int
    indent: str
    generates: bool

    def stubbed(self, stub: Stub) -> list[str]:
        line = {
            "raises": f'raise NotImplementedError("step {self.step}")',
            "returns None": "return" if self.generates else "return None",
            "returns ''": "return" if self.generates else 'return ""',
        }[stub]
        return [self.indent + line, *([self.indent + "yield"] if self.generates else [])]


def jobs(space: Workspace) -> Iterator[Job]:
    """One job."""
    yield Job(space.number, "fault", lambda: unfinished_claims(space))


def unfinished_claims(space: Workspace) -> Iterator[Claim]:
    """No half-finished solution gets a misconception."""
    found = list(mistaken(space, CHECKED))
    yield Claim(
        id=f"{space.number}.fault.unfinished",
        kind="fault",
        claim="no half-finished solution looks like a fault",
        holds=not found,
        where=space.where(space.manifest_file, "[[faults]]"),
        found="; ".join(f"{half}: looks like `{fault.name}`" for half, fault in found),
        todo="say more in `says`, or let a test tell unwritten code from the fault",
    )


def mistaken(space: Workspace, stubs: tuple[Stub, ...]) -> Iterator[tuple[Half, Fault]]:
    """The half-finished solutions that look like a fault."""
    from grader.claims.graded import plant

    for half in halves(space, stubs):
        directory = space.edited(space.target(), [])
        for name, text in half.files.items():
            (directory / name).write_text(text, encoding="utf-8", newline="")
        run = _run_while_like_a_fault(space, directory)
        if run is None:
            continue
        try:
            fault = misconceptions.recognise(space.chapter, run, lambda fault: plant(space, fault))
        except EditError:
            continue  # the fault's own claim says so
        if fault is not None:
            yield half, fault


def _run_while_like_a_fault(space: Workspace, directory: Path) -> Run | None:
    """The focused tests' run; None as soon as it can be no fault's."""
    left = list(space.chapter.manifest.faults)

    def look(result: TestResult) -> None:
        says = {f.name: [c.says for c in f.catches if c.test == result.name] for f in left}
        said = message(result)
        left[:] = [
            fault
            for fault in left
            if bool(says[fault.name]) == (result.outcome == "failed")
            and all(part in said for part in says[fault.name])
        ]
        if not left or result.outcome == "not run" or misconceptions.is_unwritten(result):
            raise _LikeNone

    try:
        return space.run(directory, expected_focused(space.chapter), on_result=look)
    except _LikeNone:
        return None


class _LikeNone(Exception):
    """No fault is left."""


def halves(space: Workspace, stubs: tuple[Stub, ...] = STUBS) -> Iterator[Half]:
    """Every beginning of the chapter's steps, with each kind of body for the rest."""
    steps = [step.id for step in space.chapter.manifest.steps]
    bodies = {
        name: found
        for name in space.chapter.manifest.teaching_files
        if name.endswith(".py") and (found := _bodies(space, name))
    }
    seen: list[dict[str, str]] = []
    for done in range(len(steps)):
        for stub in stubs:
            files = {
                name: _stubbed(space.target() / name, todo, stub)
                for name, found in bodies.items()
                if (todo := [body for body in found if steps.index(body.step) >= done])
            }
            if files and files not in seen:
                seen.append(files)
                yield Half(done, stub, files)


def _bodies(space: Workspace, name: str) -> list[_Body]:
    """The bodies of `name` that a learner of this chapter writes, each with its step."""
    target = (space.target() / name).read_text(encoding="utf-8")
    parent = space.parent() / name
    before = parent.read_text(encoding="utf-8") if parent.is_file() else ""
    old = {ast.dump(node) for _, node in _functions(before)}
    starter = space.chapter.starter / name
    skeleton = starter.read_text(encoding="utf-8") if starter.is_file() else ""
    named = {place: _STEP.search(ast.unparse(node)) for place, node in _functions(skeleton)}
    manifest = space.chapter.manifest
    ids = [step.id for step in manifest.steps]
    default = next((step.id for step in manifest.steps if name in step.files), ids[0])
    lines = target.split("\n")
    found: list[_Body] = []
    for place, node in _functions(target):
        if ast.dump(node) in old:
            continue
        step = match[1] if (match := named.get(place)) else default
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not body or body[0].lineno == node.lineno or step not in ids:
            continue
        line = lines[body[0].lineno - 1]
        indent = line[: len(line) - len(line.lstrip())]
        last = body[-1].end_lineno or body[-1].lineno
        found.append(_Body(step, body[0].lineno, last, indent, _generates(node)))
    return found


def _functions(code: str) -> Iterator[tuple[str, "ast.FunctionDef | ast.AsyncFunctionDef"]]:
    """The functions and methods of a module, by their dotted name."""
    for node in ast.parse(code).body:
        if isinstance(node, _FUNCTIONS):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, _FUNCTIONS):
                    yield f"{node.name}.{inner.name}", inner


def _generates(node: ast.AST) -> bool:
    """There is a `yield` in the function itself, and not only in one inside it."""
    return any(
        isinstance(child, ast.Yield | ast.YieldFrom)
        or (not isinstance(child, (*_FUNCTIONS, ast.Lambda)) and _generates(child))
        for child in ast.iter_child_nodes(node)
    )


def _stubbed(file: Path, bodies: list[_Body], stub: Stub) -> str:
    lines = file.read_text(encoding="utf-8").split("\n")
    for body in sorted(bodies, key=lambda body: -body.first):
        lines[body.first - 1 : body.last] = body.stubbed(stub)
    return "\n".join(lines)
