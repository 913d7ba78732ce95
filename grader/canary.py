"""Tests that show whether tests still mean something: two must fail, two must pass."""

import secrets
from pathlib import Path


class Canary:
    """Two tests that must fail and two that must pass, under names that nothing can know."""

    def __init__(self, work: Path) -> None:
        names = [f"test_{secrets.token_hex(6)}" for _ in range(4)]
        self.fails, self.passes = names[:2], names[2:]
        self.secret = secrets.token_hex(8)
        self.source = _CANARY.format(
            fail_1=self.fails[0],
            fail_2=self.fails[1],
            pass_1=self.passes[0],
            pass_2=self.passes[1],
            secret=self.secret,
        )
        self.file = work / f"canary_{secrets.token_hex(4)}.py"
        self.file.write_text(self.source, encoding="utf-8")
        self.opening = [(-2, "failed", self.secret), (-1, "passed", "")]

    def verdicts(self, last: int) -> list[tuple[int, str, str]]:
        return [*self.opening, (last, "passed", ""), (last + 1, "failed", self.secret)]


_CANARY = """
import asyncio
import pytest

from dataclasses import dataclass
from grader.testing import assert_same, fail, plain, run, soon

@dataclass
class Pair:
    x: object
    y: object

class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __hash__ = str.__hash__

def different(): assert [1] == [2]
def not_true(): assert not [1]
def not_raised():
    with pytest.raises(ValueError): pass
def failing(): pytest.fail("no")
def sentence(): fail("no")
def claims(): assert_same(Yes("a"), "b")
def inside(): assert_same([{{"a": Yes("b")}}], [{{"a": "b"}}])
def shorter(): assert_same((1,), (1, 2))
def fields(): assert_same(Pair(1, 2), Pair(1, 3))
async def later(): fail("no")
async def value(): return 1
def in_a_loop(): run(later())
async def leaving(): return asyncio.create_task(asyncio.sleep(9))
def left_behind(): run(leaving())
def never_done(): run(soon(asyncio.Event().wait(), because="", turns=1))

def must_fail():
    for probe in (
        different, not_true, not_raised, failing, sentence, claims, inside, shorter, fields,
        in_a_loop, left_behind, never_done,
    ):
        try:
            probe()
        except BaseException as error:
            if type(error).__name__ in ("Skipped", "Exit"): return
        else:
            return
    raise AssertionError("{secret}")

def must_pass():
    assert [1, "a"] == [1, "a"]
    assert_same([{{"a": (1, None)}}], [{{"a": (1, None)}}])
    assert_same(plain(Pair((1,), "a")), {{"x": [1], "y": "a"}})
    assert_same(run(value()), 1)
    with pytest.raises(ValueError): int("x")

def {fail_1}(): must_fail()
def {pass_1}(): must_pass()
def {pass_2}(): must_pass()
def {fail_2}(): must_fail()
"""
