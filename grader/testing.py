"""What the course's tests share: exact comparison, running a coroutine, cutting a stream.

It works under plain pytest as well as under the grader. A failure is written for the
learner who meets it at midnight: what was expected, what came, and which rule says so.
"""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Coroutine, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S", str, bytes)

_LEAVES = (str, int, float, bool, bytes, type(None))
_WIDTH = 400  # characters of one value in a message
_CONTEXT = 60  # characters shown on each side of where two long texts part


class Mismatch(AssertionError):
    """Two values differ. The parts are kept apart so that a report can lay them out."""

    def __init__(self, *, path: str, expected: str, got: str, because: str) -> None:
        self.path = path
        self.expected = expected
        self.got = got
        self.because = because
        at = f"at {path}\n" if path else ""
        rule = f"\n{because}" if because else ""
        super().__init__(f"{at}expected  {expected}\ngot       {got}{rule}")


def assert_same(actual: object, expected: object, *, because: str = "") -> None:
    """Fail unless `actual` is exactly `expected`: same types, same values, all the way down.

    `__eq__` is never asked, so an object that claims to equal everything equals nothing here,
    and True is not 1. Dataclasses are compared class by class and field by field. The message shows
    the first place that differs, and `because`, the rule that was broken.
    """
    __tracebackhide__ = True
    difference = _difference(actual, expected, "")
    if difference is not None:
        path, got, want = difference
        known = list(_errors_told(expected))
        told = [text for text in _errors_told(actual) if text not in known]
        # Such an event is long, and what it says stands at its end, where a report cuts it off.
        says = [f"an `error` event came, and says: {t}" for t in told[:1] if t not in because]
        rule = "\n".join(filter(None, [*says, because]))
        raise Mismatch(path=path, expected=want, got=got, because=rule)


def _errors_told(value: object) -> Iterator[str]:
    """The texts of the `error` events in a value: where a model's code broke, they say how."""
    for event in value if isinstance(value, list | tuple) else (value,):
        kind = getattr(event, "type", None)
        text = getattr(getattr(event, "message", None), "error_message", None)
        if is_dataclass(event) and kind == "error" and type(kind) is type(text) is str and text:
            yield text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"


def plain(value: object) -> Any:
    """`value` as plain data: a dataclass becomes a dict of its tag (`type` or `role`) and fields.

    Tuples become lists. Tests compare this with a literal, so that a class which
    drops or invents a field can't hide it.
    """
    if is_dataclass(value) and not isinstance(value, type):
        tags = {name: getattr(value, name) for name in ("type", "role") if hasattr(value, name)}
        return tags | {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if type(value) in (list, tuple):
        return [plain(item) for item in value]  # type: ignore[attr-defined]
    if type(value) is dict:
        return {key: plain(item) for key, item in value.items()}
    return value


def fail(message: str) -> None:
    """Fail with a sentence and nothing else."""
    __tracebackhide__ = True
    raise AssertionError(message)


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run one coroutine in a fresh event loop and return what it returns.

    Fails if it leaves a task behind: whoever starts a task ends it.
    """
    __tracebackhide__ = True
    results: list[T] = []
    asyncio.run(_and_no_task_left(coroutine, results))
    if not results:
        raise AssertionError("the event loop ended before the coroutine did")
    return results[0]


def _tell(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # One line and no traceback. The garbage collector calls this for a task whose exception nobody
    # fetched, at times in the middle of pytest's own ast.parse(); a traceback calls that again,
    # and CPython 3.11 answers with a SystemError that ends the whole session.
    with contextlib.suppress(Exception):
        print(f"asyncio: {context['message']}: {context.get('exception')!r}", file=sys.stderr)


async def _and_no_task_left(coroutine: Awaitable[T], results: list[T]) -> None:
    asyncio.get_running_loop().set_exception_handler(_tell)
    result = await coroutine
    for _ in range(3):  # let a task that was cancelled in this turn finish
        await asyncio.sleep(0)
    # A task on something else than a coroutine is the event loop's own: it closes an async
    # generator that was dropped half read, as httpx drops its own ones.
    others = asyncio.all_tasks() - {asyncio.current_task()}
    left = {task for task in others if inspect.iscoroutine(task.get_coro())}
    if left:
        names = ", ".join(sorted(getattr(t.get_coro(), "__qualname__", "?") for t in left))
        raise AssertionError(f"a task was left running: {names}; whoever starts a task must end it")
    results.append(result)


async def soon(awaitable: Awaitable[T], *, because: str, turns: int = 1000) -> T:
    """What `awaitable` gives, or a failure if it is not done after `turns` of the event loop.

    For code that waits for other tasks, and neither for time nor for a network: a thousand
    turns take milliseconds, and what is not done by then never will be.
    """
    __tracebackhide__ = True
    task = asyncio.ensure_future(awaitable)
    for _ in range(turns):
        if task.done():
            return task.result()
        await asyncio.sleep(0)
    task.cancel()
    raise AssertionError(f"still waiting after {turns} turns of the event loop\n{because}")


async def collect(items: AsyncIterable[T]) -> list[T]:
    """All items of an async iterable."""
    return [item async for item in items]


async def aiter_of(*items: T) -> AsyncIterator[T]:
    """An async iterator over `items`: the smallest stream there is."""
    for item in items:
        yield item


def pieces(whole: S, size: int) -> list[S]:
    """`whole` cut every `size` characters or bytes."""
    return [whole[at : at + size] for at in range(0, len(whole), size)]


def every_cut(whole: S) -> Iterator[tuple[int, tuple[S, S]]]:
    """Every way to cut `whole` in two: the position, and the two parts."""
    for at in range(1, len(whole)):
        yield at, (whole[:at], whole[at:])


def _difference(actual: object, expected: object, path: str) -> tuple[str, str, str] | None:
    """The first difference as (path, got, expected), or None."""
    kind = type(expected)
    if type(actual) is not kind:
        got, want = type(actual).__name__, kind.__name__
        return path, f"{_show(actual)} ({got})", f"{_show(expected)} ({want})"
    if kind in (list, tuple):
        return _difference_in_sequence(actual, expected, path)  # type: ignore[arg-type]
    if kind is dict:
        return _difference_in_dict(actual, expected, path)  # type: ignore[arg-type]
    if kind in (set, frozenset):  # by repr: an element's own __eq__ and __hash__ are not asked
        left, right = (sorted(items, key=_show) for items in (actual, expected))  # type: ignore[call-overload]
        return _difference_in_sequence(left, right, path)
    if is_dataclass(kind):
        for field in fields(kind):
            found = _difference(
                getattr(actual, field.name), getattr(expected, field.name), f"{path}.{field.name}"
            )
            if found:
                return found
        return None
    if kind in (str, bytes):
        return _difference_in_text(actual, expected, path)  # type: ignore[arg-type]
    if kind in _LEAVES:
        same = actual == expected or (actual != actual and expected != expected)  # NaN is NaN
        return None if same else (path, _show(actual), _show(expected))
    return None if actual is expected else (path, _show(actual), _show(expected))


def _difference_in_sequence(
    actual: Sequence[object], expected: Sequence[object], path: str
) -> tuple[str, str, str] | None:
    for at, (left, right) in enumerate(zip(actual, expected, strict=False)):
        found = _difference(left, right, f"{path}[{at}]")
        if found:
            return found
    if len(actual) == len(expected):
        return None
    at = min(len(actual), len(expected))
    got = _show(actual[at]) if at < len(actual) else f"nothing: {at} items"
    want = _show(expected[at]) if at < len(expected) else f"nothing: {at} items"
    return f"{path}[{at}]", got, want


def _difference_in_text(
    actual: str | bytes, expected: str | bytes, path: str
) -> tuple[str, str, str] | None:
    if actual == expected:
        return None
    if max(len(actual), len(expected)) <= _WIDTH // 2:
        return path, _show(actual), _show(expected)
    shorter = min(len(actual), len(expected))
    at = next((k for k in range(shorter) if actual[k] != expected[k]), shorter)
    start = max(0, at - _CONTEXT)
    shown = (
        f"{'…' if start else ''}{_show(text[start : at + _CONTEXT])}"
        f"{'…' if at + _CONTEXT < len(text) else ''} ({len(text)} long)"
        for text in (actual, expected)
    )
    return f"{path}[{at}:]", next(shown), next(shown)


def _difference_in_dict(
    actual: dict[object, object], expected: dict[object, object], path: str
) -> tuple[str, str, str] | None:
    for key in actual:  # a key that equals everything would be found under any name
        if type(key) not in _LEAVES and not any(key is known for known in expected):
            return f"{path}[{_show(key)}]", f"a key of type {type(key).__name__}", "no such key"
    for key, value in expected.items():
        if key not in actual:
            return f"{path}[{key!r}]", f"no such key; keys {_show(list(actual))}", _show(value)
        found = _difference(actual[key], value, f"{path}[{key!r}]")
        if found:
            return found
    for key, value in actual.items():
        if key not in expected:
            return f"{path}[{key!r}]", _show(value), "no such key"
    return None


def _show(value: object) -> str:
    try:
        shown = repr(value)
    except Exception as error:  # a learner's __repr__ may be broken too
        shown = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH // 2]} … {shown[-_WIDTH // 2 :]}"
