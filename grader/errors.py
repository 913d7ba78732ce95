"""The errors that a user may cause. The CLI prints each as one message and exits with 2."""


class GraderError(Exception):
    """What the user asked for cannot be done. The text says what and where; `hint`, what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class CourseError(GraderError):
    """The course itself cannot be read: a manifest or a file it names is wrong."""
