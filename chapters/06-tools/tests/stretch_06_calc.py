"""Chapter 06, stretch: `calc` against Python's own arithmetic, and against hostile expressions."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from grader.testing import assert_same, fail, run
from mini_agent.tools import ToolError, calc_tool
from mini_agent.tools.calc import evaluate, format_number

LIMIT = 10**300

numbers = st.one_of(
    st.integers(min_value=0, max_value=10**12).map(str),
    st.floats(min_value=0, max_value=1e12, allow_nan=False).map(lambda value: f"{value:.6f}"),
    st.sampled_from(["0", "1", "2", "0.5", "1e3", "2.5E-3"]),
)


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    binary = st.tuples(inner, operators, inner).map(" ".join)
    bracketed = inner.map(lambda text: f"({text})")
    signed = st.tuples(st.sampled_from(["-", "+"]), inner).map("".join)
    power = st.tuples(inner, st.integers(min_value=-20, max_value=20)).map(
        lambda pair: f"({pair[0]}) ** {pair[1]}"
    )
    return st.one_of(binary, bracketed, signed, power)


expressions = st.recursive(numbers, grown, max_leaves=12)


@settings(deadline=None, max_examples=400)
@given(expressions)
def test_calc_agrees_with_python(expression: str) -> None:
    """Where both give a number it is the same number; where Python has none, calc refuses."""
    if len(expression) > 400:
        return
    refusal, got = attempt(lambda: evaluate(expression))
    if refusal is None:  # so no value on the way was large, and Python will be quick
        assert_same(got, eval(expression), because=f"{expression} has one value")
    elif "**" not in expression:  # what Python makes of a refused power might never end
        try:
            expected = eval(expression)  # built above from numbers and operators alone
        except ZeroDivisionError:
            return
        assert abs(expected) > 1e100, f"{expression} is {expected!r}, but calc said: {refusal}"


@settings(deadline=None, max_examples=300)
@given(st.text(alphabet="0123456789.eE+-*/%() ", max_size=60))
def test_calc_answers_or_refuses_any_text(expression: str) -> None:
    """No text of the allowed characters gives anything but a number or a ToolError."""
    refusal, value = attempt(lambda: evaluate(expression))
    if refusal is not None:
        return
    assert type(value) in (int, float), f"{expression!r} gave {value!r}"
    assert math.isfinite(value), f"{expression!r} gave {value!r}"
    assert abs(value) < LIMIT, f"{expression!r} gave a number of more than 300 digits"


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=40))
def test_calc_survives_any_unicode(expression: str) -> None:
    """Whatever characters come, the outcome is a text or a ToolError."""
    refusal, answer = attempt(lambda: run(calc_tool().execute({"expression": expression}, None)))
    if refusal is None:
        float(answer)
    assert refusal != "", "a refusal says why"


def test_calc_is_done_in_bounded_time() -> None:
    """Expressions made to keep a program busy are answered or refused at once."""
    hostile = [
        "9**9**9",
        "9**9**9**9**9",
        "10**1000**1000",
        "(10**299)**1000",
        "(2**900)**(2**900)",
        "(-2)**999999999999",
        "2**-99999999999",
        "0.1**-1000",
        "*".join(["9" * 40] * 12),
        "**".join(["2"] * 120),
        "1" * 100_000,
        "+" * 100_000,
        "(" * 100_000,
        "((((" * 60 + "1" + "))))" * 60,
        "-" * 499 + "1",
        "+".join(["1"] * 250),
        "1" * 499 + "%7",
        "1e400-1e400",
        "(1e200*1e200)*0",
    ]
    for expression in hostile:
        begun = time.perf_counter()
        attempt(partial(evaluate, expression))
        took = time.perf_counter() - begun
        if took > 0.5:
            fail(f"{expression[:30]}… kept the program busy for {took:.1f} s")


def test_calc_takes_what_people_type() -> None:
    """A long sum is no attack, and × ÷ and full-width brackets are arithmetic."""
    assert_same(evaluate("+".join(["1"] * 100)), 100, because="a sum of 100 numbers is a sum")
    assert_same(evaluate("12×8"), 96, because="× is how a person writes a product")
    assert_same(evaluate("（1+2）÷2"), 1.5, because="so are ÷ and full-width brackets")
    assert_same(evaluate(" 1 +\t1\n"), 2, because="blanks around a number are nothing")


def test_calc_writes_numbers_as_people_do() -> None:
    """No `.0`, no rounding noise, and every digit of a whole number."""
    written = [
        (4.0, "4"),
        (-0.0, "0"),
        (0.1 + 0.2, "0.3"),
        (1 / 3, "0.333333333333333"),
        (1e20, "1e+20"),
        (10**20, "100000000000000000000"),
    ]
    for value, text in written:
        assert_same(format_number(value), text, because=f"{value!r} is written {text}")


def attempt(action: Callable[[], Any]) -> tuple[str | None, Any]:
    """The text of the ToolError that `action` raised, or None and what it returned."""
    try:
        return None, action()
    except ToolError as error:
        return str(error), None
