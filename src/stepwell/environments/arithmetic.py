"""Arithmetic word problems of our own, as many as one likes: each is drawn from its id; its answer is a whole number.

They are for a run without a network, and for a small model: two to four steps of arithmetic with numbers that nobody
computes in the head, so that a tool which computes is worth calling.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

_NAMES: Final = ("Ada", "Bela", "Chidi", "Dilek", "Emre", "Farah", "Goro", "Hana", "Ivo", "Juno")
_GOODS: Final = ("apples", "bolts", "candles", "tiles", "pencils", "bricks", "seeds", "stamps")


@dataclass(frozen=True, slots=True)
class WordProblem:
    """A question with its answer."""

    kind: str
    question: str
    answer: int


def word_problem(task_id: str) -> WordProblem:
    """The problem that an id stands for: the same one every time."""
    draw = random.Random(f"arithmetic-{task_id}")
    kind = draw.choice(tuple(KINDS))
    question, answer = KINDS[kind](draw)
    return WordProblem(kind, question, answer)


def _shopping(draw: random.Random) -> tuple[str, int]:
    name, (one, other) = draw.choice(_NAMES), draw.sample(_GOODS, 2)
    first, price, second, cost = (draw.randint(12, 98) for _ in range(4))
    paid = first * price + second * cost
    change = draw.randint(100, 9_999)
    return (
        f"{name} buys {first} boxes of {one} at {price} crowns each and {second} boxes of {other} at {cost} crowns "
        f"each, and pays with {paid + change} crowns. How many crowns does {name} get back?",
        change,
    )


def _sharing(draw: random.Random) -> tuple[str, int]:
    goods, people, each = draw.choice(_GOODS), draw.randint(13, 47), draw.randint(113, 989)
    rest = draw.randrange(people)
    return (
        f"{people * each + rest} {goods} are shared among {people} people so that all get the same number, as many as "
        f"possible. How many {goods} are left over?",
        rest,
    )


def _journey(draw: random.Random) -> tuple[str, int]:
    name, hours, speed = draw.choice(_NAMES), draw.randint(3, 19), draw.randint(41, 97)
    more, faster = draw.randint(3, 19), draw.randint(2, 30)
    return (
        f"{name} drives for {hours} hours at {speed} km an hour, then for {more} hours at {faster} km an hour more. "
        "How many km is that together?",
        hours * speed + more * (speed + faster),
    )


def _savings(draw: random.Random) -> tuple[str, int]:
    name, start, added, months = draw.choice(_NAMES), draw.randint(211, 989), draw.randint(13, 89), draw.randint(5, 23)
    return (
        f"{name} has {start} crowns and puts {added} crowns more aside in the first month. In each month after it "
        f"{name} puts 7 crowns more aside than in the month before. How many crowns are there after {months} months?",
        start + months * added + 7 * months * (months - 1) // 2,
    )


def _tiling(draw: random.Random) -> tuple[str, int]:
    long, wide, hole = draw.randint(21, 97), draw.randint(21, 97), draw.randint(3, 19)
    return (
        f"A floor of {long} by {wide} tiles has a square hole of {hole} by {hole} tiles in the middle. A box holds 6 "
        "tiles. How many boxes does one have to open to tile the floor?",
        -(-(long * wide - hole * hole) // 6),
    )


def _calendar(draw: random.Random) -> tuple[str, int]:
    name, first, step, days = draw.choice(_NAMES), draw.randint(3, 29), draw.randint(2, 9), draw.randint(12, 60)
    visits = len(range(first, first + days, step))
    return (
        f"{name} waters the garden on day {first}, and from then on every {step} days. The last day of the season is "
        f"day {first + days - 1}. How often does {name} water the garden?",
        visits,
    )


KINDS: Final[Mapping[str, Callable[[random.Random], tuple[str, int]]]] = {
    "shopping": _shopping,
    "sharing": _sharing,
    "journey": _journey,
    "savings": _savings,
    "tiling": _tiling,
    "calendar": _calendar,
}
"""How each kind of problem is drawn: (question, answer)."""
