"""The verbs: arguments in, exit code out.

0: all green. 1: something is red. 2: the command or the course is wrong, and nothing was
changed. 130: Ctrl+C; but `--watch` ends with the last run's code: Ctrl+C is the way out of it.

A learner waits for this module at every save: what a verb needs is imported by that verb.
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from grader import __version__, terminal
from grader.errors import GraderError

if TYPE_CHECKING:
    from grader.course import Chapter, Course

F = TypeVar("F", bound=Callable[..., Any])

_FORMATS = ("text", "json", "junit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Errors become one message on stderr and exit code 2, never a traceback."""
    from_shell = None if arguments is None else list(arguments)
    try:
        code = cli.main(args=from_shell, prog_name="grader", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        terminal.tell(error.format_message() + "\n")
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "grader"
        _complain(_lower(error.format_message()), f"`{command} --help` shows how it is used")
    except GraderError as error:
        _complain(str(error), error.hint)
    except (click.Abort, KeyboardInterrupt):
        terminal.tell("stopped\n")
        return 130
    except OSError as error:
        name = f": `{error.filename}`" if error.filename else ""
        _complain(f"{error.strerror or error}{name}", "")
    return 2


def _complain(message: str, hint: str) -> None:
    from grader import report

    terminal.tell(report.error(message, hint))


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:].rstrip(".")


def _course_option(function: F) -> F:
    def keep(context: click.Context, parameter: click.Parameter, value: Path | None) -> None:
        if value is not None:
            context.ensure_object(dict)["course"] = value

    return click.option(
        "--course",
        type=click.Path(path_type=Path),
        metavar="PATH",
        expose_value=False,
        callback=keep,
        help="The course to use. Without it: the checkout around the working directory, "
        "else the course that came with the grader.",
    )(function)


def _load() -> "Course":
    from grader.course import load_course

    return load_course(click.get_current_context().ensure_object(dict).get("course"))


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 96})
@click.version_option(__version__, message="grader %(version)s")
@_course_option
def cli() -> None:
    """Practice the workbook's chapters, and have every save graded.

    \b
    Start a chapter:     grader practice 05 mydir
    Grade your work:     grader test mydir
    Grade each save:     grader test mydir --watch
    When you are stuck:  grader hint 05 5.3

    Exit code: 0 all green, 1 something red, 2 a wrong command or course.
    """


@cli.command("list")
@_course_option
def list_() -> int:
    """List the chapters."""
    from grader import report

    terminal.write(report.chapter_list(_load(), terminal.style_for(sys.stdout)))
    return 0


def _limit_options(function: F) -> F:
    one = click.option("--timeout", type=float, metavar="S", help="Seconds a test may take (10).")
    whole = click.option(
        "--run-timeout", type=float, metavar="S", help="Seconds the whole run may take (60)."
    )
    return one(whole(function))


@cli.command(short_help="Make a practice directory for a chapter, and grade it.")
@click.argument("chapter")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--from",
    "previous",
    metavar="OTHER",
    type=click.Path(path_type=Path),
    help="Your own practice of the chapter before: its code becomes the parent.",
)
@click.option("--watch", is_flag=True, help="Grade again at every save; Ctrl+C ends it.")
@click.option("-v", "--verbose", is_flag=True, help="Whole tracebacks, and what tests printed.")
@_limit_options
@_course_option
def practice(
    chapter: str,
    directory: Path,
    previous: Path | None,
    watch: bool,
    verbose: bool,
    timeout: float | None,
    run_timeout: float | None,
) -> int:
    """Make a practice directory for CHAPTER in DIR, and grade it.

    DIR gets what the chapter starts from: the finished code of the chapters before, the starter,
    the tests, and the chapter's README. Where DIR is one already, it is only graded: no file of
    yours is ever written over.

    \b
    Examples:
      grader practice 05 mydir                  also `5` or `provider-adapter`
      grader practice 06 next --from mydir      go on with your own code
      grader practice 05 mydir --watch          grade every save
    """
    from grader.grading import Grading, Opening, limits_of, worker

    course = _load()
    opening = Opening(course, course.chapter(chapter), directory)
    opening.check()
    limits = limits_of(timeout, run_timeout)
    with contextlib.ExitStack() as stack:
        warm = None if watch and previous is None else stack.enter_context(worker())
        here = opening.practice(previous, warm)
        grading = Grading(course, here, limits, verbose, warnings=opening.warnings)
        return grading.watch() if watch else grading.once(warm)


@cli.command(short_help="Grade a practice directory, or a part of it.")
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.option("--step", metavar="ID", help="Only this practice step, such as 5.2.")
@click.option("-k", "text", metavar="TEXT", help="Only tests with TEXT in their name or title.")
@click.option("--stretch", is_flag=True, help="The stretch tests too: the code held to real life.")
@click.option("--watch", is_flag=True, help="Grade again at every save; Ctrl+C ends it.")
@click.option("-v", "--verbose", is_flag=True, help="Whole tracebacks, and what tests printed.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="text", help="Form of the report."
)
@_limit_options
@_course_option
def test(
    directory: Path,
    step: str | None,
    text: str | None,
    stretch: bool,
    watch: bool,
    verbose: bool,
    form: str,
    timeout: float | None,
    run_timeout: float | None,
) -> int:
    """Grade the practice directory DIR, the working directory if it is left out.

    The course's own copy of the tests runs, in a process of its own. Nothing is written to DIR.

    \b
    Examples:
      grader test mydir --step 5.2      one practice step
      grader test mydir -k sse          tests with `sse` in their name
      grader test mydir --watch         again at every save
      grader test mydir --format json   for a program

    JSON keys that stay: chapter, directory, passed, failed, not_run, seconds, cause (why tests
    were not run, or null), looks_like (a known mistake, or null), and tests, each with id, title,
    step, outcome ("passed", "failed" or "not run"), seconds and message.
    """
    from grader.grading import Grading, limits_of, worker
    from grader.practice import is_practice, open_practice

    if watch and form != "text":
        raise click.UsageError("`--watch` is for people: it has no `--format`")
    with contextlib.ExitStack() as stack:
        warm = None
        if not watch and is_practice(directory):
            warm = stack.enter_context(worker())  # up while the course is read
        course = _load()
        grading = Grading(
            course,
            open_practice(course, directory),
            limits_of(timeout, run_timeout),
            verbose,
            step=step,
            text=text,
            stretch=stretch,
            form=form,
        )
        return grading.watch() if watch else grading.once(warm)


@cli.command(short_help="Where a chapter starts and ends, and how to work on it.")
@click.argument("chapter")
@_course_option
def checkpoint(chapter: str) -> int:
    """Where CHAPTER starts and ends: parent, target, files, first red, first step, commands."""
    from grader import report

    course = _load()
    style = terminal.style_for(sys.stdout)
    terminal.write(report.checkpoint(course, course.chapter(chapter), style))
    return 0


@cli.command(short_help="A hint for a step, from vague to plain.")
@click.argument("chapter")
@click.argument("step", required=False)
@click.option("--level", type=click.IntRange(min=1), default=1, metavar="N", help="Which hint (1).")
@_course_option
def hint(chapter: str, step: str | None, level: int) -> int:
    """A hint for STEP of CHAPTER. The first is vague, each next one says more.

    A step's id names its chapter too, so it is enough.

    \b
    Examples:
      grader hint 05 5.3
      grader hint 5.3 --level 2
    """
    from grader import report

    course = _load()
    number, dot, _ = chapter.partition(".")
    if step is None and dot and number.isdecimal():
        chapter, step = number, chapter
    found = course.chapter(chapter)
    if step is None:
        steps = "\n".join(f"  {each.id}  {each.title}" for each in found.manifest.steps)
        raise GraderError("which step?", hint=f"the steps of {found.slug} are\n{steps}")
    wanted = found.step(step)
    if level > len(wanted.hints):
        raise GraderError(f"step {step} has {len(wanted.hints)} hints; there is no level {level}")
    terminal.write(report.hint(course, found, wanted, level))
    return 0


@cli.command(short_help="Set a file back to its start; yours is kept.")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("file", required=False)
@_course_option
def reset(directory: Path, file: str | None) -> int:
    """Set FILE of the practice directory DIR back to what it was at the start.

    Yours is kept beside it, as FILE.bak, then FILE.bak.1 and so on. Without FILE: list what
    differs from the start.

    \b
    Examples:
      grader reset mydir
      grader reset mydir mini_agent/sse.py
    """
    from grader import practice as practices
    from grader import report

    course = _load()
    here = practices.open_practice(course, directory)
    if file is None:
        found = practices.differences(course, here)
        terminal.write(report.differing(course, here.chapter, str(directory), found))
        return 0
    done = practices.reset_file(course, here, file)
    terminal.write(report.reset_done(str(directory), done))
    return 0


@cli.command(short_help="What a chapter adds and changes; the code with --reveal.")
@click.argument("chapter")
@click.option("--reveal", is_flag=True, help="Show the code: this is the solution.")
@_course_option
def diff(chapter: str, reveal: bool) -> int:
    """What CHAPTER adds and changes, from its parent to its target: the files, with line counts."""
    from grader import report
    from grader.checkpoint import changes

    course = _load()
    found = course.chapter(chapter)
    style = terminal.style_for(sys.stdout)
    listed = list(changes(course, found))
    terminal.write(report.diff(course, found, listed, style, reveal=reveal))
    return 0


@cli.command(short_help="Write a finished checkpoint into a new directory.")
@click.argument("chapter")
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--parent", is_flag=True, help="The checkpoint that the chapter starts from.")
@_course_option
def export(chapter: str, directory: Path, parent: bool) -> int:
    """Write the finished checkpoint of CHAPTER into DIR, which must be new.

    It comes with its tests, so that `grader test DIR` grades it.

    \b
    Examples:
      grader export 05 done && grader test done
      grader export 05 before --parent
    """
    from grader import practice as practices

    course = _load()
    wanted = course.chapter(chapter)
    if parent:
        before = course.parent(wanted)
        if before is None:
            raise GraderError(f"{wanted.slug} is the first chapter: its parent is empty")
        wanted = before
    practices.export_target(course, wanted, directory)
    terminal.write(f"wrote {wanted.slug}, finished, to {directory}\n")
    return 0


@cli.command()
@click.argument("chapters", nargs=-1, metavar="[CHAPTER]...")
@click.option("--only", multiple=True, metavar="KIND", help="Only claims of this kind; repeatable.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Run N at once (processors).")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="text", help="How to report (text)."
)
@click.option("--fail-fast", is_flag=True, help="Stop at the first claim that fails.")
@click.option(
    "--write-notebooks", is_flag=True, help="Prove nothing: run the notebooks, store their outputs."
)
@_course_option
def check(
    chapters: tuple[str, ...],
    only: tuple[str, ...],
    jobs: int | None,
    form: str,
    fail_fast: bool,
    write_notebooks: bool,
) -> int:
    """Prove what the course claims: all chapters, or the ones named. For instructors.

    \b
    manifest   chapter.toml is well formed and names what exists
    overlay    a solution holds what its chapter changes, and no copy
    signature  starter and solution agree on public names
    red        the starter is red as stated, and so after the first step
    green      the solution passes, in random order, with two hash seeds
    fault      each planted fault fails exactly the tests it lists
    survivor   tests catch mutants (all of them with --only survivor)
    prose      commands run, counts are true, names and links exist
    demo       recorded output is what the program prints
    notebook   each notebook runs, and its stored outputs are what it gives

    \b
    Examples:
      grader check
      grader check 05 --only fault --only red
    """
    from grader import check_report
    from grader.check import check as prove
    from grader.claims.claim import KINDS

    course = _load()
    chosen = [course.chapter(name) for name in chapters] or list(course.chapters)
    if write_notebooks:
        return _write_notebooks(course, chosen)
    for kind in only:
        if kind not in KINDS:
            raise GraderError(f"there is no kind `{kind}`; the kinds are {', '.join(KINDS)}")
    with check_report.Progress() as progress:
        claims = prove(
            course,
            chosen,
            only=[kind for kind in KINDS if kind in only],
            jobs=jobs,
            fail_fast=fail_fast,
            on_start=progress.start,
            on_claim=progress.step,
        )
    if form == "json":
        terminal.write(check_report.as_json(course, claims))
    elif form == "junit":
        terminal.write(check_report.as_junit(claims))
    else:
        style = terminal.style_for(sys.stdout)
        terminal.write(check_report.text(course, chosen, claims, style))
    return 0 if claims and all(claim.holds for claim in claims) else 1


def _write_notebooks(course: "Course", chosen: "Sequence[Chapter]") -> int:
    from grader.claims.notebook import write

    code = 0
    for path, changed, problem in write(course, chosen):
        name = path.relative_to(course.root).as_posix()
        if problem:
            code = 1
            terminal.write(f"failed     {name}\n{problem}\n")
        else:
            terminal.write(f"{'written  ' if changed else 'unchanged'}  {name}\n")
    return code


@cli.command(short_help="Open a chapter's notebook in JupyterLab, on your code if you name it.")
@click.argument("chapter")
@click.argument("directory", metavar="[DIR]", required=False, type=click.Path(path_type=Path))
@_course_option
def notebook(chapter: str, directory: Path | None) -> int:
    """Open the notebook of CHAPTER in JupyterLab: on the reference solution, or on the practice
    directory DIR.

    You get a copy of your own, in DIR/notebooks or in my-notebooks; one that is there is kept.
    00 is the notebook of the whole course.

    \b
    Examples:
      grader notebook 05
      grader notebook 05 mydir
    """
    from grader import notebook as notebooks
    from grader.practice import open_practice

    course = _load()
    found = notebooks.find(course, chapter)
    practice = open_practice(course, directory) if directory is not None else None
    notebooks.require(("jupyterlab", "ipykernel"))
    folder = directory / "notebooks" if directory is not None else Path("my-notebooks")
    copy = notebooks.copy_for_reader(found, folder)
    code = f"your code in {directory}" if practice else "the reference solution"
    terminal.tell(f"{copy}: on {code}\n")
    return notebooks.open_lab(course, copy, directory if practice else None)


def problem_with(arguments: Sequence[str]) -> str:
    """Why these words would be no command of the grader; "" if they are one. Nothing is run."""
    name, *rest = arguments or [""]
    command = cli.commands.get(name)
    if command is None:
        return "" if name in ("--help", "-h", "--version") else f"there is no verb `{name}`"
    if "--help" in rest or "-h" in rest:
        return ""
    try:
        command.make_context(name, rest)
    except click.UsageError as error:
        return _lower(error.format_message())
    return ""
