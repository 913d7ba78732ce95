"""Claims about mutants: small changes of the teaching files that the chapter's tests must catch.

The faults of a chapter are planted by hand where learners go wrong. Mutants are made by a
tool (mutmut's operators, through libcst), everywhere else: a line that no test looks at shows up
as a survivor. Texts are left alone, since no test should pin the wording of a message.
"""

import dataclasses
import difflib
import functools
import math
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grader.claims.claim import Claim, Job, Workspace
from grader.results import TestResult
from grader.runner import Expected, Limits, expected_focused, expected_stretch

if TYPE_CHECKING:
    import libcst

SAMPLE = 10  # mutants of a chapter in a plain check; evenly spread, always the same


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed teaching file. `key` shows the change and is what `mutants.excluded` names."""

    file: str
    line: int
    key: str
    code: str


def jobs(space: Workspace, *, full: bool) -> Iterator[Job]:
    """All mutants of the chapter if `full`, else the fixed sample, cut into a few jobs."""
    parts = 8 if full else 2
    trial = _Trial(space, full, parts)
    for part in range(parts):
        yield Job(space.number, "survivor", functools.partial(trial.claims, part))


class _Trial:
    """The mutants of one chapter, tried in parts; the part that ends last yields the claims."""

    def __init__(self, space: Workspace, full: bool, parts: int) -> None:
        self._space = space
        self._full = full
        self._parts = self._left = parts
        self._lock = threading.Lock()
        self._begun = False
        self._problem: Claim | None = None
        self._mutants: list[Mutant] = []
        self._limits = Limits()
        self._alive: set[Mutant] = set()

    def claims(self, part: int) -> Iterator[Claim]:
        """The tests catch at least the share of mutants that the manifest states."""
        with self._lock:
            if not self._begun:
                self._problem = self._begin()
                self._begun = True
        if self._problem is None:
            for mutant in self._tried()[part :: self._parts]:
                self._try(mutant)
        with self._lock:
            self._left -= 1
            if self._left:
                return
        if self._problem is None:
            yield from self._verdict()
        else:
            yield self._problem

    def _begin(self) -> Claim | None:
        """Make the mutants, and learn how long the tests take. Returns what is in the way."""
        space = self._space
        text = "mutants of the teaching files are caught"
        try:
            self._mutants = mutants_of(space)
        except ImportError as error:
            return _claim(
                space,
                "score",
                text,
                f"mutants cannot be made: {error}",
                "install the extra `check`: in a checkout, `python -m pip install '.[check]'`",
            )
        run = space.run(space.target(), _expected(space))
        bad = next((test for test in run.tests if test.outcome != "passed"), None)
        if bad is not None:
            found = f"`{bad.name}` is {bad.outcome} without any mutant"
            return _claim(space, "score", text, found, "bring the target to green first")
        # A mutant that hangs is caught; a slow machine is none.
        slowest = max(test.seconds for test in run.tests)
        self._limits = Limits(
            test_seconds=max(3.0, 5 * slowest), run_seconds=max(20.0, 5 * run.seconds)
        )
        return None

    @property
    def _counted(self) -> list[Mutant]:
        excluded = self._space.chapter.manifest.mutants.excluded
        return [mutant for mutant in self._mutants if mutant.key not in excluded]

    def _tried(self) -> list[Mutant]:
        return self._counted if self._full else sample(self._counted)

    def _try(self, mutant: Mutant) -> None:
        if survives(self._space, mutant, self._limits):
            with self._lock:
                self._alive.add(mutant)

    def _verdict(self) -> Iterator[Claim]:
        space, wanted = self._space, self._space.chapter.manifest.mutants
        keys = {mutant.key for mutant in self._mutants}
        idle = [key for key, reason in wanted.excluded.items() if key not in keys]
        mute = [key for key, reason in wanted.excluded.items() if not reason.strip()]
        found = [f"there is no `{key}`" for key in idle]
        found += [f"`{key}` has no reason" for key in mute]
        yield _claim(
            space,
            "excluded",
            "every excluded mutant exists, and has its reason",
            "; ".join(found),
            "remove the entry if its line is gone, or say why no test can catch it",
            (idle + mute or [""])[0],
        )
        tried, counted = self._tried(), self._counted
        figure = wanted.minimum
        if tried != counted and not _by_chance(len(tried), len(self._alive), figure):
            # The figure is about all mutants: too few in the sample is a reason to try the others.
            for mutant in counted:
                if mutant not in tried:
                    self._try(mutant)
            tried = counted
        alive = [mutant for mutant in tried if mutant in self._alive]
        caught = len(tried) - len(alive)
        score = caught / len(tried) if tried else 1.0
        enough = score >= figure or (
            tried != counted and _by_chance(len(tried), len(alive), figure)
        )
        claim = _claim(
            space,
            "score",
            f"at least {figure:.0%} of the mutants of the teaching files are caught",
            ""
            if enough
            else f"{score:.1%} of {len(tried)} are; these are not:\n"
            + "\n".join(f"  line {mutant.line} of {mutant.key}" for mutant in alive),
            "sharpen a test, or exclude an equivalent mutant in [mutants.excluded] with its reason",
        )
        facts: dict[str, float] = {"caught": caught, "of": len(tried), "all": len(counted)}
        names = tuple(f"line {mutant.line} of {mutant.key}" for mutant in alive)
        yield dataclasses.replace(claim, facts=facts, listed=names)


def _by_chance(tried: int, alive: int, figure: float) -> bool:
    """Whether a sample may come out so where the share of all mutants is `figure`.

    A sample of ten measures no share; one that is two standard deviations below it tells of
    a change.
    """
    deviation = math.sqrt(figure * (1 - figure) / tried) if tried else 0.0
    return tried - alive >= (figure - 2 * deviation) * tried


def _expected(space: Workspace) -> tuple[Expected, ...]:
    return (*expected_focused(space.chapter), *expected_stretch(space.chapter))


def survives(space: Workspace, mutant: Mutant, limits: Limits) -> bool:
    """No focused test fails on the mutant, and no stretch test either."""
    directory = space.edited(space.target(), [])
    (directory / mutant.file).write_text(mutant.code, encoding="utf-8", newline="")
    try:
        return space.run(
            directory, _expected(space), limits=limits, on_result=_stop_at_failure
        ).green
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
    import libcst.metadata
    from mutmut.mutation.file_mutation import MutationVisitor
    from mutmut.mutation.mutators import mutation_operators
    from mutmut.mutation.pragma_handling import IgnoredCode

    visitor = MutationVisitor(mutation_operators, IgnoredCode(set(), set(), set()))
    wrapper = libcst.MetadataWrapper(libcst.parse_module(code))
    module = wrapper.visit(visitor)
    spans = wrapper.resolve(libcst.metadata.ByteSpanPositionProvider)
    texts = _text_nodes(module)
    source = code.encode()
    before = code.split("\n")
    seen: set[str] = set()
    for mutation in visitor.mutations:
        node = mutation.original_node
        if id(node) in texts or _is_idle(node, mutation.mutated_node):
            continue
        changed = _replaced(module, source, node, mutation.mutated_node, spans.get(node))
        if changed in seen or changed == code:
            continue
        seen.add(changed)
        after = changed.split("\n")
        line = next(
            (n for n, pair in enumerate(zip(before, after, strict=False), 1) if pair[0] != pair[1]),
            min(len(before), len(after)),
        )
        yield Mutant(file, line, f"{file}: {_change(before, after)}", changed)


def _replaced(
    module: "libcst.Module",
    source: bytes,
    old: "libcst.CSTNode",
    new: "libcst.CSTNode",
    span: Any,
) -> str:
    """The code of `module`, which is `source`, with `new` in the place of `old`.

    By its place in the text where that is all there is to it, a hundred times as fast. A node
    that spans lines, or has brackets of its own, is more than its text.
    """
    import libcst

    if span is not None:
        start, end = span.start, span.start + span.length
        if module.code_for_node(old).encode() == source[start:end]:
            return (source[:start] + module.code_for_node(new).encode() + source[end:]).decode()
    return libcst.ensure_type(module.deep_replace(old, new), libcst.Module).code


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


def sample(mutants: list[Mutant]) -> list[Mutant]:
    """SAMPLE of them, evenly spread from the first to the last; all where there are no more."""
    if len(mutants) <= SAMPLE:
        return mutants
    return [mutants[i * len(mutants) // SAMPLE] for i in range(SAMPLE)]
