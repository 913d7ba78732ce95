"""Turn an exception into the parts of a report. Part of the worker: it runs beside learner code."""

import os
import traceback

_LENGTH = 16 * 1024  # characters of one text in a record


def safe(value: object, limit: int = _LENGTH) -> str:
    """`value` as text that any encoder takes; too long a text loses its middle."""
    try:
        text = value if type(value) is str else str(value)
    except BaseException as error:
        text = f"<{type(value).__name__}, whose str raises {type(error).__name__}>"
    text = str.__str__(text)
    if len(text) > limit:
        text = (
            f"{text[: limit * 3 // 4]}\n[{len(text) - limit} characters cut]\n{text[-limit // 4 :]}"
        )
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


class Explainer:
    """Turns an exception into the parts of a report. It knows which lines are the learner's."""

    def __init__(self, directory: str) -> None:
        from grader.testing import Mismatch

        self._mismatch = Mismatch
        self._root = os.path.join(directory, "")

    def relative(self, path: str) -> str | None:
        """`path` under the practice directory with forward slashes, or None if it is not there."""
        if not os.path.isabs(path) or not path.startswith(self._root):
            return None
        return path[len(self._root) :].replace(os.sep, "/")

    def where(self, error: BaseException) -> str:
        """The learner's innermost line, such as "mini_agent/sse.py:14, in read_lines", or ""."""
        seen: set[int] = set()
        current: BaseException | None = error
        while current is not None and id(current) not in seen:
            seen.add(id(current))
            for frame, line in reversed(list(traceback.walk_tb(current.__traceback__))):
                file = self.relative(frame.f_code.co_filename)
                if file is not None:
                    return f"{file}:{line}, in {frame.f_code.co_name}"
            if isinstance(current, BaseExceptionGroup) and current.exceptions:
                current = current.exceptions[0]
            else:
                current = current.__cause__ or current.__context__
        return ""

    def failure(self, error: BaseException, depth: int = 1) -> dict[str, str]:
        """The fields of a failed test's record. The first `depth` frames are the grader's own."""
        fields = {
            "exception": safe(type(error).__name__, 200),
            "message": safe(self.message(error)),
            "where": safe(self.where(error), 500),
            "traceback": safe(self._traceback(error, depth)),
        }
        if type(error) is self._mismatch:
            fields |= {
                "path": safe(error.path, 1000),
                "expected": safe(error.expected),
                "got": safe(error.got),
                "because": safe(error.because),
            }
        return fields

    def message(self, error: BaseException) -> str:
        """What to say of `error`, its notes included."""
        kind = type(error).__name__
        text = safe(error)
        if kind == "Skipped":
            text = f"pytest.skip was called ({text}); a skipped test is no pass"
        elif kind == "XFailed":
            text = f"pytest.xfail was called ({text}); an expected failure is no pass"
        elif kind == "Exit":
            text = f"pytest.exit was called ({text})"
        elif isinstance(error, SystemExit):
            text = f"the code called sys.exit({safe(error.code)})"
        elif isinstance(error, EOFError) and text == "EOF when reading a line":
            text = f"{kind}: {text}: a test has no keyboard, so input() gets no answer"
        elif kind == "BdbQuit":
            text = f"{kind}: a debugger has no keyboard here; under plain `pytest` it has one"
        elif isinstance(error, SyntaxError):
            text = self._syntax(error)
        elif isinstance(error, ImportError):
            text = self._import(error)
        elif not isinstance(error, AssertionError) and kind != "Failed":
            text = f"{kind}: {text}" if text else kind
        notes = getattr(error, "__notes__", None)
        if type(notes) is list and notes:
            text = "\n".join([text, *(safe(note, 2000) for note in notes[:5])])
        return text.replace(self._root, "") or kind

    def cause(self, error: BaseException) -> str:
        """Why a test file could not be loaded, in one line with the learner's file and line."""
        text = self.message(error).strip().partition("\n")[0]
        if isinstance(error, SyntaxError):
            return text
        where = self.where(error).partition(",")[0]
        return f"{text}, at {where}" if where and where not in text else text

    def _syntax(self, error: SyntaxError) -> str:
        advice = (
            ", as in a file saved as UTF-16; save it as UTF-8"
            if "null byte" in safe(error.msg)
            else ""
        )
        file = self.relative(error.filename or "") or os.path.basename(error.filename or "?")
        line = f":{error.lineno}" if error.lineno else ""
        return f"{type(error).__name__} in {file}{line}: {safe(error.msg)}{advice}"

    def _import(self, error: ImportError) -> str:
        text = safe(error).replace(" (unknown location)", "")
        name = error.name or ""
        if name == "mini_agent" or name.startswith("mini_agent."):
            relative = name.replace(".", "/")
            base = os.path.join(self._root, *name.split("."))
            for path, shown in ((f"{base}.py", f"{relative}.py"), (base, relative)):
                if os.path.isdir(path):
                    if path != base or not os.path.exists(os.path.join(base, "__init__.py")):
                        return f"{text}: {shown} is a directory" + (
                            "" if path != base else " without __init__.py"
                        )
                elif os.path.islink(path) and not os.path.exists(path):
                    return f"{text}: {shown} is a link that leads nowhere"
        return text

    def _traceback(self, error: BaseException, depth: int) -> str:
        try:
            tb = error.__traceback__
            while depth > 0 and tb is not None:
                tb, depth = tb.tb_next, depth - 1
            lines = traceback.format_exception(type(error), error, tb, limit=-40)
        except BaseException as broken:
            return f"no traceback: {type(broken).__name__}"
        return "".join(lines).replace(self._root, "")
