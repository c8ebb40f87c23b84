"""Whether an answer is right as mathematics: by its text, as a number, and by a computer algebra system in the end.

The last is Math-Verify (https://github.com/huggingface/Math-Verify, Apache-2.0), asked in processes that can be killed
(`stepwell.scoring.checker`). What comes before it settles nearly all answers without one, and what it gets wrong:
percentages, powers of ten as `1e3`, choices such as `(B)`, several boxes.
"""

import asyncio
import re
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Protocol, TypeVar

from stepwell.errors import ConfigError, EnvironmentFailed
from stepwell.scoring.checker import Checkers

_T = TypeVar("_T")

_SECONDS: Final = 4.0
"""That a comparison may take: less than the library itself would give up after, without a word of why."""
_LONGEST: Final = 512
"""Characters of an answer that is looked at; no answer needs more."""

_WRAPPED: Final = re.compile(r"\\(?:text|mathrm|textbf|mathbf|mbox)\s*\{([^{}]*)\}")
_FRACTION: Final = re.compile(r"([-+]?)\\[dt]?frac\{(\d{1,60})\}\{(\d{1,60})\}")
_NUMBER: Final = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d{1,60})?(?:\.\d{1,60})?(?:[eE][-+]?\d{1,2})?")
_IN_TEXT: Final = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?")
_BLANK: Final = re.compile(r"\\[!,;: ]|(?<!\d)\s+|\s+(?!\d)")
"""None of them between two digits: `1 1/2` is not eleven halves."""
_CHOICE: Final = re.compile(r"\(([A-Za-z])\)")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an answer is right."""

    right: bool
    unchecked: str = ""
    """Why that is not known: it then counts as wrong."""


class Judge(Protocol):
    """Compares answers with gold answers."""

    async def judge(self, answer: str, golds: Sequence[str]) -> Verdict:
        """Whether `answer` is one of `golds`. Whatever somebody answers, nothing is raised for it."""
        ...


class Numbers:
    """Knows numbers alone; of a longer answer, the last in it."""

    async def judge(self, answer: str, golds: Sequence[str]) -> Verdict:
        """See `Judge`."""
        said = boxed(answer)[-_LONGEST:]
        found = _IN_TEXT.findall(said)
        last = found[-1].rstrip(",") if found else ""
        return Verdict(any(equal(said, gold) or equal(last, gold) for gold in golds))


class Mathematics:
    """Knows sets, intervals, formulas and so on. Needs the extra `math`."""

    def __init__(self) -> None:
        self._checkers = Checkers(_SECONDS)
        self._loop = _Loop()

    async def judge(self, answer: str, golds: Sequence[str]) -> Verdict:
        """See `Judge`."""
        said = boxed(answer)
        known = [equal(said, gold) for gold in golds]
        if True in known:
            return Verdict(True)
        unsettled = [gold for gold, right in zip(golds, known, strict=True) if right is None]
        if not unsettled or not said.strip():
            return Verdict(False)
        if len(said) > _LONGEST:
            return Verdict(False, f"the answer is longer than {_LONGEST} characters")
        try:
            return Verdict(await self._loop.run(self._checkers.equal(f"${said}$" if _bare(said) else said, unsettled)))
        except EnvironmentFailed as error:  # it was given an answer that keeps it busy, or breaks it
            return Verdict(False, str(error))
        except ConfigError:  # a gold answer that is no mathematics, a name, say, is compared as text
            return Verdict(False)


def boxed(text: str) -> str:
    r"""What stands in the last `\boxed{…}` of a text; all of it if there is none."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return text
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin, len(text)):
        if text[place] == "{":
            depth += 1
        elif text[place] == "}":
            depth -= 1
            if depth < 0:
                return text[begin:place]
    return text


def equal(answer: str, gold: str) -> bool | None:
    """Whether they are the same, as text or as numbers; None if it takes more than that to know."""
    said, meant = _plain(answer), _plain(gold)
    if said and said == meant:
        return True
    left, right = _number(said), _number(meant)
    return None if left is None or right is None else left == right


def _plain(text: str) -> str:
    """Without what says nothing: dollars, spaces, wrappers, a full stop."""
    if len(text) > 2 * _LONGEST:
        return ""
    short = text.strip().replace("\\%", "%").replace("\\$", "").replace("$", "")
    short = _WRAPPED.sub(r"\1", short).replace("\\left", "").replace("\\right", "")
    short = _BLANK.sub("", short).rstrip(".")
    choice = _CHOICE.fullmatch(short)
    return choice.group(1) if choice else short


def _number(plain: str) -> Fraction | None:
    if plain.endswith("%"):
        part = _number(plain[:-1])
        return None if part is None else part / 100
    if fraction := _FRACTION.fullmatch(plain):
        return _quotient(f"{fraction[1]}{fraction[2]}", fraction[3])
    above, slash, below = plain.partition("/")
    return _quotient(above, below if slash else "1")


def _quotient(above: str, below: str) -> Fraction | None:
    if not (_NUMBER.fullmatch(above) and _NUMBER.fullmatch(below)):
        return None
    try:
        return Fraction(above.replace(",", "")) / Fraction(below.replace(",", ""))
    except (ValueError, ZeroDivisionError):  # no digit at all, or a half that is nothing
        return None


def _bare(said: str) -> bool:
    """Whether it is a formula without dollars rather than a sentence."""
    return not any(mark in said for mark in ("$", "\\(", "\\[")) and not re.search(r"[A-Za-z]{3,}\s+[A-Za-z]{2,}", said)


class _Loop:
    """An event loop in a thread of its own: processes belong to the loop that started them, and a task set is used from
    one loop after another. It is started when it is first needed, and ends with this process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="math answers", daemon=True).start()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
