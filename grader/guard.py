"""Notice that learner code replaced what judges it. Part of the worker."""

import builtins
import types
from typing import Any


class Guard:
    """Notices that learner code replaced what judges it."""

    def __init__(self) -> None:
        import pytest

        from grader import testing

        self._builtins = dict(vars(builtins))
        self._builtins.pop("_", None)
        self._judges: list[tuple[Any, str, object]] = [
            (testing, name, value) for name, value in vars(testing).items() if callable(value)
        ]
        self._judges += [(pytest, name, getattr(pytest, name)) for name in ("raises", "fail")]
        self._code = [
            (f"grader.testing.{name}", value, value.__code__)
            for name, value in vars(testing).items()
            if isinstance(value, types.FunctionType)
        ]
        self._helpers = {id(value) for _, _, value in self._judges}

    def watch(self, module: types.ModuleType) -> None:
        """Also see that this test module keeps the helpers it imported, and its functions' code."""
        for name, value in vars(module).items():
            if id(value) in self._helpers:
                self._judges.append((module, name, value))
            elif isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
                self._code.append((name, value, value.__code__))

    def broken(self) -> str:
        """What was replaced, or ""."""
        now = vars(builtins)
        for name, value in self._builtins.items():
            if now.get(name) is not value:
                return f"builtins.{name} was replaced"
        for owner, name, value in self._judges:
            if getattr(owner, name, None) is not value:
                return f"{owner.__name__}.{name} was replaced"
        for name, function, code in self._code:
            if function.__code__ is not code:
                return f"{name} was rewritten"
        return ""
