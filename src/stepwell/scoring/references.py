"""Reference answers: a JSONL file with a line for each task, and scorers that compare with them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from stepwell.errors import ConfigError
from stepwell.scoring.base import Measured, final_answer
from stepwell.types import Trajectory


class _Line(msgspec.Struct, forbid_unknown_fields=False):
    """What is read of a line; other keys may stand beside."""

    task_id: str
    answer: str | int | float | None = None
    answers: list[str | int | float] = []


_LINES: Final = msgspec.json.Decoder(_Line)
_NUMBERS: Final = msgspec.json.Encoder()


class References:
    """The good answers to each task."""

    def __init__(self, answers: Mapping[str, tuple[str, ...]]) -> None:
        """Hold `answers`, by task id."""
        self._answers = answers

    @classmethod
    def read(cls, path: Path) -> "References":
        """Read lines like `{"task_id": "7", "answer": "Paris"}` or `{"task_id": "7", "answers": ["a", "b"]}`.

        Lines of the same task add up.

        Raises:
            ConfigError: the file cannot be read, or a line is something else.
        """
        answers: dict[str, tuple[str, ...]] = {}
        try:
            lines = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"cannot read the references {path}: {error.strerror or error}") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                task_id, given = _understood(line, f"{path}, line {number}")
                answers[task_id] = (*answers.get(task_id, ()), *given)
        return cls(answers)

    def of(self, trajectory: Trajectory) -> tuple[str, ...]:
        """Those to its task; none if the task is not known here."""
        return self._answers.get(trajectory.info.task_id, ())


def compared(part: str, references: References, compare: Callable[[str, Sequence[str]], float]) -> Measured:
    """A scorer that compares the final answer with the references; it has nothing to say where one of them is missing.

    `compare` takes the answer and at least one reference.
    """

    def measure(trajectory: Trajectory) -> float | None:
        answer, golds = final_answer(trajectory), references.of(trajectory)
        return None if answer is None or not golds else compare(answer, golds)

    return Measured(part, measure)


def _understood(line: bytes, place: str) -> tuple[str, list[str]]:
    try:
        read = _LINES.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f'{place}: {error}; a line is like {{"task_id": "7", "answer": "Paris"}}') from error
    given = [*read.answers, *([] if read.answer is None else [read.answer])]
    if not given:
        raise ConfigError(f"{place}: neither `answer` nor `answers`")
    return read.task_id, [one if isinstance(one, str) else _NUMBERS.encode(one).decode() for one in given]
