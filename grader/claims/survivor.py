"""Claims about mutants: small changes of the teaching files that the chapter's tests must catch.

The faults of a chapter are planted by hand where learners go wrong. Mutants are made by a
tool (mutmut's operators, through libcst), everywhere else: a line that no test looks at shows up
as a survivor. Texts are left alone, since no test should pin the wording of a message.
"""

import dataclasses
import difflib
import functools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grader.claims.claim import Claim, Job, Workspace
from grader.results import TestResult
from grader.runner import Limits, expected_focused, expected_stretch

if TYPE_CHECKING:
    import libcst

_LIMITS = Limits(test_seconds=3.0, run_seconds=20.0)  # a mutant that hangs is caught
SAMPLE = 20  # mutants of a chapter in a plain check; evenly spread, always the same


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed teaching file. `key` shows the change and is what `mutants.excluded` names."""

    file: str
    line: int
    key: str
    code: str


def jobs(space: Workspace, *, full: bool) -> Iterator[Job]:
    """One job: all mutants of the chapter if `full`, else the fixed sample."""
    yield Job(space.number, "survivor", functools.partial(survivor_claims, space, full))


def survivor_claims(space: Workspace, full: bool) -> Iterator[Claim]:
    """The tests catch at least the share of mutants that the manifest states."""
    wanted = space.chapter.manifest.mutants
    try:
        mutants = mutants_of(space)
    except ImportError as error:
        yield _claim(
            space,
            "score",
            "mutants of the teaching files are caught",
            f"mutants cannot be made: {error}",
            "install the extra: `python -m pip install 'streaming-agent-workbook[check]'`",
        )
        return
    keys = {mutant.key for mutant in mutants}
    idle = [key for key in wanted.excluded if key not in keys]
    yield _claim(
        space,
        "excluded",
        "every excluded mutant exists",
        "; ".join(f"there is no `{key}`" for key in idle),
        "remove the entry: the line that it spoke of is gone",
        idle[0] if idle else "",
    )
    counted = [mutant for mutant in mutants if mutant.key not in wanted.excluded]
    tried = counted if full else sample(counted)
    alive = [mutant for mutant in tried if survives(space, mutant)]
    score = 1 - len(alive) / len(tried) if tried else 1.0
    claim = _claim(
        space,
        "score",
        f"at least {wanted.minimum:.0%} of the mutants of the teaching files are caught",
        ""
        if score >= wanted.minimum
        else f"{score:.0%} of {len(tried)} are; these are not:\n"
        + "\n".join(f"  line {mutant.line} of {mutant.key}" for mutant in alive),
        "sharpen a test, or exclude an equivalent mutant in [mutants.excluded] with its reason",
    )
    caught = len(tried) - len(alive)
    facts: dict[str, float] = {"caught": caught, "of": len(tried), "all": len(counted)}
    yield dataclasses.replace(claim, facts=facts)


def survives(space: Workspace, mutant: Mutant) -> bool:
    """No focused test fails on the mutant, and no stretch test either."""
    directory = space.edited(space.target(), [])
    (directory / mutant.file).write_text(mutant.code, encoding="utf-8", newline="")
    try:
        for expected in (expected_focused(space.chapter), expected_stretch(space.chapter)):
            if (
                expected
                and not space.run(
                    directory, expected, limits=_LIMITS, on_result=_stop_at_failure
                ).green
            ):
                return False
        return True
    except _FailureSeen:
        return False
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _FailureSeen(Exception):
    """One failure is enough."""


def _stop_at_failure(result: TestResult) -> None:
    if result.outcome != "passed":
        raise _FailureSeen


def _claim(
    space: Workspace, id: str, text: str, found: str, todo: str, needle: str = "[mutants]"
) -> Claim:
    return Claim(
        id=f"{space.number}.survivor.{id}",
        kind="survivor",
        claim=text,
        holds=not found,
        where=space.where(space.manifest_file, needle),
        found=found,
        todo=todo,
    )


def mutants_of(space: Workspace) -> list[Mutant]:
    """All mutants of the lines that the chapter writes in its teaching files, in order."""
    found: list[Mutant] = []
    for name in space.chapter.manifest.teaching_files:
        if name.endswith(".py"):
            code = (space.target() / name).read_text(encoding="utf-8")
            parent = space.parent() / name
            old = parent.read_text(encoding="utf-8") if parent.is_file() else ""
            lines = written_lines(old, code)
            found += [mutant for mutant in mutate(name, code) if mutant.line in lines]
    return found


def written_lines(old: str, new: str) -> set[int]:
    """The numbers of the lines of `new` that are not in `old`."""
    matcher = difflib.SequenceMatcher(None, old.split("\n"), new.split("\n"), autojunk=False)
    return {
        number + 1
        for tag, _, _, start, end in matcher.get_opcodes()
        if tag in ("replace", "insert")
        for number in range(start, end)
    }


def mutate(file: str, code: str) -> Iterator[Mutant]:
    """Every mutant of `code`, one change each. Raises ImportError without the extra `check`."""
    import libcst
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    module = libcst.MetadataWrapper(libcst.parse_module(code)).visit(visitor)
    texts = _text_nodes(module)
    before = code.split("\n")
    seen: set[str] = set()
    for mutation in visitor.mutations:
        node = mutation.original_node
        if id(node) in texts or _is_idle(node, mutation.mutated_node):
            continue
        changed = libcst.ensure_type(
            module.deep_replace(node, mutation.mutated_node), libcst.Module
        )
        if changed.code in seen or changed.code == code:
            continue
        seen.add(changed.code)
        after = changed.code.split("\n")
        line = next(
            (n for n, pair in enumerate(zip(before, after, strict=False), 1) if pair[0] != pair[1]),
            min(len(before), len(after)),
        )
        yield Mutant(file, line, f"{file}: {_change(before, after)}", changed.code)


def _is_idle(old: "libcst.CSTNode", new: "libcst.CSTNode") -> bool:
    """A change of text, of a type alias, or of None or False to another empty value."""
    import libcst
    import libcst.matchers as m

    if isinstance(old, libcst.BaseString):
        return True
    if m.matches(old, m.AnnAssign(annotation=m.Annotation(m.Name("TypeAlias")))):
        return True
    type_variable = m.Call(func=m.Name("TypeVar"))
    if m.matches(old, m.Assign(value=type_variable) | type_variable):
        return True
    empty = m.Name("None") | m.Name("False") | m.SimpleString('""')
    assigned = m.Assign(value=empty) | m.AnnAssign(value=empty)
    return m.matches(old, assigned) and m.matches(new, assigned)


def _text_nodes(module: "libcst.Module") -> set[int]:
    """The ids of all nodes in a `raise` or a formatted string, which make up what a user reads."""
    import libcst

    found: set[int] = set()

    class Texts(libcst.CSTVisitor):
        depth = 0

        def on_visit(self, node: libcst.CSTNode) -> bool:
            if isinstance(node, libcst.Raise | libcst.FormattedString | libcst.Assert):
                self.depth += 1
            if self.depth:
                found.add(id(node))
            return True

        def on_leave(self, original_node: libcst.CSTNode) -> None:
            if isinstance(original_node, libcst.Raise | libcst.FormattedString | libcst.Assert):
                self.depth -= 1

    module.visit(Texts())
    return found


def _change(before: list[str], after: list[str]) -> str:
    """The lines that differ, old and new, each run folded onto one line."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    old, new = [], []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag != "equal":
            old += [line.strip() for line in before[a:b]]
            new += [line.strip() for line in after[c:d]]
    return f"{' '.join(old)} -> {' '.join(new)}"


def sample(mutants: list[Mutant], size: int = SAMPLE) -> list[Mutant]:
    """`size` of them, evenly spread from the first to the last; all where there are no more."""
    if len(mutants) <= size:
        return mutants
    return [mutants[i * len(mutants) // size] for i in range(size)]
