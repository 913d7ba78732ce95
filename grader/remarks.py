"""What a reader of a report should know of a learner's code. Nothing here changes a verdict."""

import ast
from pathlib import Path

from grader.files import read_regular
from grader.output import safe_text

_MODULES = ("ctypes", "gc")
_INNER = ("_getframe", "_current_frames", "f_back", "f_locals", "tb_frame", "cell_contents")
_TELLING = (b"inspect", b"ctypes", b"_exit", b"__eq__", b"gc", *(n.encode() for n in _INNER))
_PEEKING = (
    "currentframe",
    "getframeinfo",
    "getinnerframes",
    "getouterframes",
    "getsource",
    "getsourcelines",
    "stack",
)


def remarks(directory: Path) -> list[str]:
    """What stands out in the learner's code, each with its file and line."""
    notes: list[str] = []
    for file in sorted(directory.glob("mini_agent/**/*.py")):
        source = read_regular(file)
        if source is None or not any(word in source for word in _TELLING):
            continue
        name = safe_text(file.relative_to(directory).as_posix()).replace("\n", "\\n")
        notes += _remarks_on(source, name)
    return notes


def _remarks_on(source: bytes, name: str) -> list[str]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # two are for nesting
        return []
    found = [
        (getattr(node, "lineno", 0), remark) for node in ast.walk(tree) for remark in _remark(node)
    ]
    return [f"{name}:{line} {remark}" for line, remark in sorted(found)]


def _remark(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names):
            return [f"imports {a.name}" for a in names if a.name in _MODULES]
        case ast.ImportFrom(module=module) if module in _MODULES:
            return [f"imports {module}"]
        case ast.ImportFrom(module="inspect", names=names):
            return [f"reads its caller's code ({a.name})" for a in names if a.name in _PEEKING]
        case ast.Attribute(value=ast.Name(id="inspect"), attr=name) if name in _PEEKING:
            return [f"reads its caller's code ({name})"]
        case ast.Attribute(attr=name) if name in _INNER:
            return [f"reads its caller's code ({name})"]
        case ast.Attribute(value=ast.Name(id="os"), attr="_exit"):
            return ["calls os._exit"]
        case ast.FunctionDef(name="__eq__"):
            return ["defines __eq__, which no test asks"]
    return []
