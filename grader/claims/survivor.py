"""Claims about mutants: small changes of the teaching files that the chapter's tests must catch.

The faults of a chapter are planted by hand where learners go wrong. Mutants are made by a
tool (mutmut's operators, through libcst), everywhere else: a line that no test looks at shows up
as a survivor. Texts are left alone, since no test should pin the wording of a message.
"""

import difflib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grader.claims.claim import Claim, Job, Workspace

if TYPE_CHECKING:
    import libcst

SAMPLE = 20  # mutants of a chapter in a plain check; evenly spread, always the same


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed teaching file. `key` shows the change and is what `mutants.excluded` names."""

    file: str
    line: int
    key: str
    code: str


def mutants_of(space: Workspace) -> list[Mutant]:
    """All mutants of the chapter's teaching files, in order, on the lines that the chapter writes."""
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
        changed = module.deep_replace(node, mutation.mutated_node)  # type: ignore[arg-type]
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
    """The ids of all nodes inside a `raise` or a formatted string: they make up what a user reads."""
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
