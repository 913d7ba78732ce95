"""grader.testing: what counts as the same, and what a difference tells."""

import asyncio
import enum
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from grader.testing import (
    Mismatch,
    aiter_of,
    assert_same,
    collect,
    every_cut,
    fail,
    pieces,
    plain,
    run,
)


class Yes:
    """Equal to everything, in every way Python asks."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash("a")


class YesText(str):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class YesInt(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class Posing:
    """Claims another class where `isinstance` asks."""

    __class__ = str  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


class Mute:
    def __repr__(self) -> str:
        raise RuntimeError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Loud(enum.Enum):
    ONE = 1
    TWO = 2

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


@dataclass(frozen=True)
class Point:
    x: object
    y: object = 0
    type = "point"


@dataclass(frozen=True)
class Twin:
    x: object
    y: object = 0


@dataclass(frozen=True, eq=False)
class YesPoint(Point):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [
        1,
        "a",
        b"a",
        None,
        1.5,
        math.nan,
        [1, [2]],
        (1, (2,)),
        {"a": {"b": [1]}},
        {"b": 1, "a": 2},
        {1, 2, 3},
        frozenset(["a"]),
        Colour.RED,
        Point(1, (2,)),
        int,
    ],
    ids=repr,
)
def test_a_value_is_the_same_as_its_copy(value: object) -> None:
    """Nothing is raised where types and values agree."""
    import copy

    assert_same(copy.deepcopy(value), value)


def test_the_order_of_a_dict_does_not_matter() -> None:
    """A dict is its keys and values."""
    assert_same({"a": 1, "b": 2}, {"b": 2, "a": 1})


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (Yes(), "a"),
        (YesText("b"), "a"),
        (YesText("a"), "a"),
        (YesInt(1), 1),
        (Posing(), "a"),
        (True, 1),
        (1, True),
        (1, 1.0),
        ("a", b"a"),
        ([1], (1,)),
        ((Yes(),), ("a",)),
        ([[YesInt(2)]], [[2]]),
        ({"a": Yes()}, {"a": 1}),
        ({Yes(): 1}, {"a": 1}),
        ({YesText("a"): 1}, {"a": 1}),
        ({"a": 1, Yes(): 2}, {"a": 1}),
        ({1, 2}, {1, 3}),
        ({Yes()}, {"a"}),
        ({True}, {1}),
        (Loud.ONE, Loud.TWO),
        (Colour.RED, Colour.BLUE),
        (Point(1), Twin(1)),
        (Point(Yes()), Point(1)),
        (YesPoint(1), Point(1)),
        (YesPoint(1), YesPoint(2)),
        (Yes(), Yes()),
        ([1, 2], [1]),
        ([1], [1, 2]),
        ({}, {"a": 1}),
        ({"a": 1}, {}),
        (math.nan, 1.0),
        (None, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_nothing_else_is_the_same(actual: object, expected: object) -> None:
    """No claim of equality is believed, and no type is taken for another."""
    with pytest.raises(Mismatch):
        assert_same(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "path", "got", "want"),
    [
        ([{"a": (1, 2)}], [{"a": (1, 3)}], "[0]['a'][1]", "2", "3"),
        (Point(1, [5]), Point(1, [6]), ".y[0]", "5", "6"),
        ([1], [1, 2], "[1]", "nothing: 1 items", "2"),
        ([1, 2], [1], "[1]", "2", "nothing: 1 items"),
        ({"b": 1}, {"a": 1}, "['a']", "no such key; keys ['b']", "1"),
        ({"a": 1, "b": 2}, {"a": 1}, "['b']", "2", "no such key"),
        ("1", 1, "", "'1' (str)", "1 (int)"),
        (Mute(), 1, "", "<Mute, whose repr raises RuntimeError> (Mute)", "1 (int)"),
        ("正在", "正", "", "'正在'", "'正'"),
    ],
)
def test_a_difference_says_where_and_what(
    actual: object, expected: object, path: str, got: str, want: str
) -> None:
    """The first place that differs, with both values there and the rule."""
    with pytest.raises(Mismatch) as caught:
        assert_same(actual, expected, because="the rule")

    error = caught.value
    assert (error.path, error.got, error.expected, error.because) == (path, got, want, "the rule")
    assert str(error).endswith(f"expected  {want}\ngot       {got}\nthe rule")


def test_long_texts_are_shown_where_they_part() -> None:
    """A page of text that differs in one character shows that character."""
    with pytest.raises(Mismatch) as caught:
        assert_same("x" * 500 + "A" + "y" * 500, "x" * 500 + "B" + "y" * 500)

    error = caught.value
    assert error.path == "[500:]"
    assert error.got == f"…'{'x' * 60}A{'y' * 59}'… (1001 long)"
    assert error.expected == f"…'{'x' * 60}B{'y' * 59}'… (1001 long)"


def test_one_long_text_may_begin_the_other() -> None:
    """Then the longer one shows what more it has."""
    with pytest.raises(Mismatch) as caught:
        assert_same("x" * 300, "x" * 300 + "tail")

    assert caught.value.got == f"…'{'x' * 60}' (300 long)"
    assert caught.value.expected == f"…'{'x' * 60}tail' (304 long)"


@dataclass(frozen=True)
class Reply:
    content: tuple[str, ...]
    error_message: str | None = None


@dataclass(frozen=True)
class Event:
    message: Reply
    type: str = "error"


def test_an_error_event_that_nobody_expected_is_heard() -> None:
    """Where a model's code broke, what it said stands above the rule, and not in a cut-off repr."""
    broke = Event(Reply(("a" * 500,), "list indices must be integers"))
    done = Event(Reply(("a" * 500,)), "done")
    foreseen = Event(Reply((), "connection lost"))
    said = "an `error` event came, and says: list indices must be integers\nthe rule"

    for actual, expected, because in (
        ([done, broke], [done, done], said),
        (broke, done, said),
        ([foreseen], [foreseen, done], "the rule"),
        ([done], [broke], "the rule"),
    ):
        with pytest.raises(Mismatch) as caught:
            assert_same(actual, expected, because="the rule")
        assert caught.value.because == because

    rule = "the rule; this one says 'list indices must be integers'"
    with pytest.raises(Mismatch) as caught:
        assert_same(broke, done, because=rule)
    assert caught.value.because == rule  # said once


def test_plain_gives_tags_and_fields() -> None:
    """A dataclass becomes a dict with its tag; tuples become lists, all the way down."""
    assert_same(
        plain((Point(1, (Twin("a"),)), {"k": (1,)})),
        [{"type": "point", "x": 1, "y": [{"x": "a", "y": 0}]}, {"k": [1]}],
    )


def test_plain_keeps_a_subclass_what_it_is() -> None:
    """A text that equals everything is not laundered into a text."""
    with pytest.raises(Mismatch):
        assert_same(plain(Twin(YesText("a"))), {"x": "a", "y": 0})


def test_fail_is_an_assertion() -> None:
    """It fails with the sentence and nothing else."""
    with pytest.raises(AssertionError, match=r"^a sentence$"):
        fail("a sentence")


async def _value(value: int) -> int:
    await asyncio.sleep(0)
    return value


def test_run_gives_the_result() -> None:
    """One coroutine in a loop of its own."""
    assert run(_value(3)) == 3


def test_run_names_a_task_that_was_left() -> None:
    """Whoever starts a task ends it."""
    kept: list[Any] = []

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def leaves() -> None:
        kept.append(asyncio.create_task(wait_for_ever()))

    with pytest.raises(AssertionError, match="wait_for_ever"):
        run(leaves())


def test_run_gives_a_cancelled_task_time_to_end() -> None:
    """A task that was cancelled and not awaited is on its way out."""

    async def cancels() -> str:
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel()
        return "ok"

    assert run(cancels()) == "ok"


def test_streams_and_pieces() -> None:
    """The small helpers of stream tests."""

    async def both() -> list[int]:
        items: AsyncIterator[int] = aiter_of(1, 2, 3)
        return await collect(items)

    assert run(both()) == [1, 2, 3]
    assert pieces("abcde", 2) == ["ab", "cd", "e"]
    assert pieces(b"abc", 5) == [b"abc"]
    assert list(every_cut("abc")) == [(1, ("a", "bc")), (2, ("ab", "c"))]


@pytest.mark.parametrize("make", [lambda: {"a": 1}, lambda: Point({"n": [1]})])
def test_comparison_changes_neither_side(make: Callable[[], object]) -> None:
    """Comparing is reading."""
    actual, expected = make(), make()

    assert_same(actual, expected)

    assert repr(actual) == repr(make())
    assert repr(expected) == repr(make())
