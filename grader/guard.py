"""Notice that learner code replaced what judges it. Part of the worker."""

import ast
import builtins
import sys
import types
from typing import Any, TypeAlias

Helpers: TypeAlias = tuple[tuple[str, str, str], ...]  # name in the test file, module, name there

_JUDGES = {
    "grader.testing": (),  # all of it
    "pytest": ("raises", "fail", "approx", "mark"),
    "hypothesis": ("given", "settings"),
}


def imported_helpers(tree: ast.Module) -> Helpers:
    """What a test file imports, at its top, from the modules that judge."""
    found: list[tuple[str, str, str]] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module in _JUDGES:
            found += [(name.asname or name.name, node.module, name.name) for name in node.names]
        elif isinstance(node, ast.Import):
            found += [(n.asname or n.name, n.name, "") for n in node.names if n.name in _JUDGES]
    return tuple(found)


class Guard:
    """Knows what judges as it was before learner code, and compares.

    It notices replacements, in the module that has a helper and in the test file that imported it.
    It does not search for tricks that undo themselves; the canaries and an honest reader are left.
    """

    def __init__(self) -> None:
        self._builtins = dict(vars(builtins))
        self._builtins.pop("_", None)
        self._modules = {name: sys.modules[name] for name in _JUDGES if name in sys.modules}
        self._parts: list[tuple[Any, str, object]] = []
        self._code: list[tuple[str, types.FunctionType, types.CodeType]] = []
        self._tracers = (sys.gettrace(), sys.getprofile())
        for name, module in self._modules.items():
            wanted = _JUDGES[name] or tuple(k for k, v in vars(module).items() if callable(v))
            self._parts += [(module, part, getattr(module, part)) for part in wanted]
        testing = self._modules["grader.testing"]
        self._keep_code(f"{testing.__name__}.", vars(testing))

    def _keep_code(self, prefix: str, names: dict[str, Any]) -> None:
        for name, value in names.items():
            if isinstance(value, types.FunctionType):
                self._code.append((prefix + name, value, value.__code__))

    def watch(self, module: types.ModuleType, helpers: Helpers) -> None:
        """Also see that this test file has the true helpers and keeps them, and its own code."""
        for name, source, part in helpers:
            owner = self._modules.get(source)
            if owner is not None and part != "*":
                true = getattr(owner, part, None) if part else owner
                self._parts.append((module, name, true))
        own = {
            k: v for k, v in vars(module).items() if getattr(v, "__module__", 0) == module.__name__
        }
        self._keep_code("", own)

    def broken(self) -> str:
        """What was replaced, or ""."""
        now = vars(builtins)
        for name, value in self._builtins.items():
            if now.get(name) is not value:
                return f"builtins.{name} was replaced"
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                return f"the module {name} was replaced"
        for owner, name, value in self._parts:
            if getattr(owner, name, None) is not value:
                return f"{owner.__name__}.{name} was replaced"
        for name, function, code in self._code:
            if function.__code__ is not code:
                return f"{name} was rewritten"
        if (sys.gettrace(), sys.getprofile()) != self._tracers:
            return "a trace function was set, which can change how a test runs"
        return ""
