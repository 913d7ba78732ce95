"""What check found, as text, JSON and JUnit. All three say the same."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from grader.claims.claim import KINDS, Claim
from grader.course import Chapter, Course
from grader.report import in_xml
from grader.terminal import Style, wants_color

if TYPE_CHECKING:
    import rich.progress


def text(course: Course, chapters: Sequence[Chapter], claims: Sequence[Claim], style: Style) -> str:
    """A line a chapter, each failed claim in full, and the sum."""
    lines: list[str] = []
    if not course.packaged:
        lines += [style.faint(f"course: {course.root}"), ""]
    groups = [(chapter.number, chapter.slug) for chapter in chapters]
    known = {number for number, _ in groups}
    others = sorted({claim.chapter for claim in claims} - known)
    groups += [(number, f"{number} (the whole course)") for number in others]
    for number, name in groups:
        mine = [claim for claim in claims if claim.chapter == number]
        bad = sum(not claim.holds for claim in mine)
        verdict = style.bad("FAIL") if bad else style.good("ok  ") if mine else "--  "
        count = f"{len(mine)} claims" if not bad else f"{bad} of {len(mine)} claims fail"
        lines.append(f"{verdict} {name:<28} {count}{_score(mine)}")
    failed = [claim for claim in claims if not claim.holds]
    for claim in failed:
        lines += [
            "",
            f"{style.bad(claim.id)}  {claim.where}",
            f"  claimed   {claim.claim}",
            *_folded("so is     ", claim.found),
            f"  to do     {claim.todo}",
        ]
    lines.append("")
    if failed:
        lines.append(style.bad(f"{len(failed)} of {len(claims)} claims fail"))
    elif claims:
        lines.append(style.good(f"all {len(claims)} claims hold"))
    else:
        lines.append(style.bad("no claim was proved"))
    return "\n".join(lines) + "\n"


def _score(claims: Sequence[Claim]) -> str:
    for claim in claims:
        if "caught" in claim.facts:
            caught, of, every = (int(claim.facts[key]) for key in ("caught", "of", "all"))
            return f", {caught} of {of} mutants caught" + (
                "" if of == every else f" ({every} in all)"
            )
    return ""


def _folded(label: str, found: str) -> Iterator[str]:
    first, *rest = found.rstrip().split("\n") if found else ["it does not hold"]
    yield f"  {label}{first}"
    yield from (f"  {'':10}{line}" for line in rest)


def as_json(course: Course, claims: Sequence[Claim]) -> str:
    """The same in ASCII: {"course", "claims", "failed", "results": [{"id", "holds", …}, …]}."""
    results = [
        {
            "id": claim.id,
            "kind": claim.kind,
            "chapter": claim.chapter,
            "claim": claim.claim,
            "holds": claim.holds,
            "where": claim.where,
            "found": claim.found,
            "todo": "" if claim.holds else claim.todo,
            "facts": claim.facts,
            "listed": list(claim.listed),
        }
        for claim in claims
    ]
    whole: dict[str, Any] = {
        "course": None if course.packaged else str(course.root),
        "claims": len(claims),
        "failed": sum(not claim.holds for claim in claims),
        "results": results,
    }
    return json.dumps(whole, indent=2) + "\n"


def as_junit(claims: Sequence[Claim]) -> str:
    """A suite for each kind, a case for each claim."""
    from xml.etree import ElementTree as xml

    root = xml.Element("testsuites")
    for kind in KINDS:
        mine = [claim for claim in claims if claim.kind == kind]
        if not mine:
            continue
        failed = sum(not claim.holds for claim in mine)
        suite = xml.SubElement(
            root, "testsuite", name=kind, tests=str(len(mine)), failures=str(failed), errors="0"
        )
        for claim in mine:
            case = xml.SubElement(suite, "testcase", classname=claim.chapter, name=in_xml(claim.id))
            if not claim.holds:
                told = xml.SubElement(case, "failure", message=in_xml(claim.claim))
                told.text = in_xml(f"{claim.where}\n{claim.found}\n{claim.todo}")
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


class Progress:
    """A bar on stderr, on a terminal only: how far it is, and each failure as it is found."""

    def __init__(self) -> None:
        self._bar: rich.progress.Progress | None = None
        self._task: Any = None

    def __enter__(self) -> "Progress":
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.completed:.0f} of {task.total:.0f}"),
                TimeElapsedColumn(),
                TextColumn("{task.description}", markup=False),
                console=Console(stderr=True, no_color=not wants_color(sys.stderr)),
                transient=True,
            )
            self._bar.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def start(self, jobs: int) -> None:
        if self._bar is not None:
            self._task = self._bar.add_task("", total=jobs)

    def step(self, claim: Claim | None) -> None:
        """A claim was proved; or, with None, a job is done."""
        if self._bar is None:
            return
        if claim is None:
            self._bar.advance(self._task)
        elif claim.holds:
            self._bar.update(self._task, description=claim.id)
        else:
            self._bar.console.print(f"{claim.id} fails", markup=False, highlight=False)
