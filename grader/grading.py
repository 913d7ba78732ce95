"""A verb that grades: open or make the practice, choose the tests, run them, show the report."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grader import practice as practices
from grader import report, runner, terminal
from grader.course import Chapter, Course, Fault
from grader.errors import GraderError
from grader.practice import Practice
from grader.report import Graded
from grader.results import Run
from grader.runner import Expected, Limits, Warm


def worker() -> Warm:
    """Python and pytest on their way up, while the caller reads the course."""
    return Warm(preload=("pytest",)).start()


def limits_of(timeout: float | None, run_timeout: float | None) -> Limits:
    if not all(0 < each < math.inf for each in (timeout, run_timeout) if each is not None):
        raise GraderError("a time limit is a number of seconds above 0")
    usual = Limits()
    one = timeout or usual.test_seconds
    return Limits(
        test_seconds=one,
        # Who gives a test more than a run has means the test.
        run_seconds=run_timeout or max(usual.run_seconds, one),
    )


class Grading:
    """A practice, and how it is to be graded: once, or at every save."""

    def __init__(
        self,
        course: Course,
        practice: Practice,
        limits: Limits,
        verbose: bool,
        *,
        step: str | None = None,
        text: str | None = None,
        stretch: bool = False,
        form: str = "text",
        warnings: Sequence[str] = (),
    ) -> None:
        self.course = course
        self.practice = practice
        self.limits = limits
        self.verbose = verbose
        self.stretch = stretch
        self.form = form
        version = practice.warning(course)
        self.warnings = (*([version] if version else []), *warnings)
        options = [f"--step {step}"] if step else []
        options += [f"-k {report.quoted(text)}"] if text else []
        self.only = " ".join(options)
        self.expected = _chosen(practice.chapter, step, text, stretch)

    def once(self, warm: Warm | None = None) -> int:
        graded = self._grade(warm)
        terminal.write(self._render(graded))
        return 0 if graded.run.green else 1

    def watch(self) -> int:
        """Grade at every save. A save during a run ends that run: its answer is out of date."""
        from grader.watch import watch  # the library behind it is for those who watch

        def show(graded: Graded) -> int:
            clear = "\x1b[2J\x1b[H" if terminal.obeys_escapes(sys.stdout) else ""
            terminal.write(clear + self._render(graded))
            terminal.tell(f"watching {self.practice.directory}; Ctrl+C ends it\n")
            return 0 if graded.run.green else 1

        code = watch(self.practice.directory, self._grade, show)
        if terminal.is_terminal(sys.stderr):
            terminal.tell("\n")  # after the ^C
        return code

    def _grade(self, warm: Warm | None = None) -> Graded:
        directory = self.practice.directory
        with _progress(len(self.expected)) as on_result:
            run = runner.run_tests(
                directory, self.expected, limits=self.limits, on_result=on_result, warm=warm
            )
        nothing = not run.count("passed") and self.practice.origin == "starter"
        untouched = nothing and practices.is_untouched(self.course, self.practice)
        return report.Graded(
            run=run,
            course=self.course,
            chapter=self.practice.chapter,
            directory=str(directory),
            only=self.only,
            stretch=self.stretch,
            first_look=untouched,
            looks_like=None if untouched else self._misconception(run, warm),
            lost=practices.lost_module(self.course, self.practice, run.cause or ""),
            warnings=self.warnings,
        )

    def _misconception(self, run: Run, warm: Warm | None) -> Fault | None:
        """The known mistake that a whole run looks exactly like. A part of one says too little."""
        if self.only or run.green:
            return None
        from grader import misconceptions  # most runs need it not

        focused = {test.name for _, test in self.practice.chapter.focused}
        tests = tuple(test for test in run.tests if test.name in focused)
        run = dataclasses.replace(run, tests=tests)
        return misconceptions.look(self.course, self.practice.chapter, run, warm, self.limits)

    def _render(self, graded: Graded) -> str:
        if self.form == "json":
            return report.as_json(graded)
        if self.form == "junit":
            return report.as_junit(graded)
        return report.text(graded, terminal.style_for(sys.stdout), verbose=self.verbose)


def _chosen(
    chapter: Chapter, step: str | None, text: str | None, stretch: bool
) -> tuple[Expected, ...]:
    """The tests that the options choose. Raises GraderError if they choose none."""
    expected = list(runner.expected_focused(chapter))
    if step is not None:
        chapter.step(step)  # an unknown one is an error that names the steps
        expected = [each for each in expected if each.step == step]
    if stretch:
        expected += runner.expected_stretch(chapter)
        if not chapter.stretch_files:
            raise GraderError(f"{chapter.slug} has no stretch tests")
    if text is not None:
        wanted = text.casefold()
        known = "\n".join(f"  {each.title}" for each in expected)
        expected = [each for each in expected if wanted in f"{each.name}\n{each.title}".casefold()]
        if not expected:
            raise GraderError(f"no test has `{text}` in its name", hint=f"the tests are\n{known}")
    return tuple(expected)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[object], None] | None]:
    """A counter on stderr while tests run, on a terminal only; gone when they are done."""
    if not terminal.obeys_escapes(sys.stderr):
        yield None
        return
    done = 0

    def tell() -> None:
        terminal.tell(f"\rgrading: {done} of {total} ")

    def on_result(result: object) -> None:
        nonlocal done
        done += 1
        tell()

    try:
        tell()  # before the first result: an endless loop may stand where the modules are imported
        yield on_result
    finally:
        terminal.tell("\r\x1b[K")


class Opening:
    """A practice directory of `chapter`: the one that is there, or a new one."""

    def __init__(self, course: Course, chapter: Chapter, directory: Path) -> None:
        self.course = course
        self.chapter = chapter
        self.directory = directory
        self.warnings: list[str] = []

    def check(self) -> None:
        """Raise GraderError if chapter or directory cannot be used. Nothing is written yet."""
        self.chapter.manifest  # noqa: B018  # a broken chapter is told before anything is made
        if not practices.is_practice(self.directory):
            practices.refuse_place(self.course, self.directory)
            practices.refuse_nesting(self.directory)
            return
        here = practices.open_practice(self.course, self.directory)
        if here.chapter is not self.chapter:
            regrade = f"{self.course.command} test {report.quoted(str(self.directory))}"
            raise GraderError(
                f"`{self.directory}` is a practice of {here.chapter.slug},"
                f" not of {self.chapter.slug}; nothing in it was changed",
                hint=f"grade it with `{regrade}`, or choose another directory",
            )

    def practice(self, previous: Path | None, warm: Warm | None) -> Practice:
        if practices.is_practice(self.directory):
            if previous is not None:
                self.warnings.append(f"`--from` was not used: `{self.directory}` exists already")
            return practices.open_practice(self.course, self.directory)
        earlier = None if previous is None else self._earlier(previous, warm)
        made = practices.create_practice(
            self.course, self.chapter, self.directory, previous=earlier
        )
        parent = self.course.parent(self.chapter)
        base = str(earlier.directory) if earlier else parent.slug if parent else ""
        sources = [*filter(None, [base]), f"the starter of {self.chapter.slug}"]
        terminal.tell(f"made {self.directory} from {' and '.join(sources)}\n")
        return made

    def _earlier(self, directory: Path, warm: Warm | None) -> Practice:
        """The practice that `--from` names. One that is not green is a warning."""
        course, chapter = self.course, self.chapter
        parent = course.parent(chapter)
        if parent is None:
            raise GraderError(
                f"{chapter.slug} is the first chapter: there is nothing to take `--from`"
            )
        earlier = practices.open_practice(course, directory)
        if earlier.chapter is not parent:
            raise GraderError(
                f"`{directory}` is a practice of {earlier.chapter.slug};"
                f" {chapter.slug} goes on from {parent.slug}",
                hint=f"without `--from`, the reference solution of {parent.slug} is used",
            )
        for name in practices.missing_from(course, earlier):
            self.warnings.append(f"`{directory}` has no {name}: the reference's is used")
        expected = runner.expected_focused(parent)
        with _progress(len(expected)) as on_result:
            run = runner.run_tests(directory, expected, on_result=on_result, warm=warm)
        if not run.green:
            self.warnings.append(
                f"`{directory}` is not green: {run.count('passed')} of {len(run.tests)} pass,"
                " and what is red there comes along;"
                f" without `--from` you start from the course's own {parent.slug}"
            )
        return earlier
