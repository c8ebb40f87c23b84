"""A language model as the judge, at any server that speaks OpenAI's chat completions: vLLM, SGLang, a gateway of ours,
a hosted model."""

import math
import re
import zlib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import AfterValidator, Field, model_validator

from stepwell.errors import EngineError
from stepwell.scoring.asking import Asker, AskingConfig
from stepwell.scoring.base import Score, Scorer, ScorerConfig, final_answer
from stepwell.scoring.matcher import Matchers, checked
from stepwell.scoring.references import References
from stepwell.scoring.transcript import transcript
from stepwell.types import Trajectory

_PLACES: Final = re.compile(r"\{(task|conversation|answer|reference)\}")
_LINE: Final = r"(?im)^[^\w\n]*score\W*?(-?\d+(?:\.\d+)?)"
_SEARCHED: Final = 16_384
"""Characters at the end of its words in which the score is searched."""
_SEARCHING: Final = 10.0
"""Seconds for one search."""
_SCHEMA: Final = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "score": {"type": "number"}},
    "required": ["reason", "score"],
    "additionalProperties": False,
}
_JSON: Final = {"type": "json_schema", "json_schema": {"name": "score", "strict": True, "schema": _SCHEMA}}
_PROMPT: Final = """\
You grade the answer of an assistant. Be strict: an answer that is wrong, made up or beside the point is worth little,
however well it is written.

What was asked:
{task}

The conversation before the answer:
{conversation}

The answer:
{answer}

Give your reason in one or two sentences. Then end with one line of the form "Score: N", where N is from 0 (useless) to
10 (nothing better is possible)."""


def _grouped(pattern: str) -> str:
    if not re.compile(checked(pattern)).groups:
        raise ValueError("it needs a group that holds the score")
    return pattern


class JudgeConfig(AskingConfig, ScorerConfig):
    """A language model reads the conversation and gives a score, which is mapped to 0..1."""

    use: Literal["judge"] = "judge"
    """Names the scorer."""
    prompt: str = _PROMPT
    """What it is told: {task} is the user's first message, {conversation} all before the final answer, {answer} the
    final answer, {reference} the reference answers."""
    references: Path | None = None
    """See `ExactMatchConfig.references`; for a prompt with {reference}."""
    form: Literal["line", "json"] = "line"
    """How it answers: in words, of which `pattern` finds the score; or as JSON with `reason` and `score`, to which the
    server holds it by a schema."""
    pattern: Annotated[str, AfterValidator(_grouped)] = _LINE
    """Finds the score, as group 1; the last place counts."""
    scale: tuple[float, float] = (0.0, 10.0)
    """The lowest and the highest score: they become 0 and 1. One beyond them is an error."""
    max_tokens: int = Field(default=1024, ge=1)
    """Upper bound on the tokens of its answer, its reasoning included."""

    @model_validator(mode="after")
    def _fits_together(self) -> "JudgeConfig":
        if not 0 < self.scale[1] - self.scale[0] < math.inf:
            raise ValueError("scale must go from a lower to a higher number, and no further than numbers go")
        if "{answer}" not in self.prompt:
            raise ValueError("a prompt without {answer} judges nothing")
        if ("{reference}" in self.prompt) != (self.references is not None):
            raise ValueError("a prompt with {reference} and a file of references belong together")
        return self

    def build(self) -> Scorer:
        """See `ScorerConfig`."""
        return _Judge(self, References.read(self.references) if self.references else None)


class _Verdict(msgspec.Struct):
    score: float
    reason: str = ""


_VERDICTS: Final = msgspec.json.Decoder(_Verdict)


class _Judge:
    def __init__(self, config: JudgeConfig, references: References | None) -> None:
        self._config = config
        self._references = references
        self._asker = Asker(config)
        self._matchers = Matchers(_SEARCHING)

    async def score(self, trajectory: Trajectory) -> Score | None:
        """See `Scorer`."""
        prompt = self._prompt(trajectory)
        if prompt is None:
            return None
        words = await self._asker.ask(self._body(prompt), zlib.crc32(trajectory.info.id.encode()))
        value, reason = await self._read(words)
        lowest, highest = self._config.scale
        if not lowest <= value <= highest:
            raise EngineError(f"the judge gave {value:g}, but the scale goes from {lowest:g} to {highest:g}")
        return Score(parts={self._config.name: (value - lowest) / (highest - lowest)}, text=reason, asked=prompt)

    def _prompt(self, trajectory: Trajectory) -> str | None:
        """None if there is nothing to judge, or nothing to compare it with."""
        answer = final_answer(trajectory)
        golds = self._references.of(trajectory) if self._references else ()
        if answer is None or (self._references and not golds):
            return None
        told = transcript(trajectory)
        values = {"task": told.task, "conversation": told.conversation, "answer": answer, "reference": "\n".join(golds)}
        # In one go: what agents write may hold {answer} itself.
        return _PLACES.sub(lambda place: values[place[1]], self._config.prompt)

    def _body(self, prompt: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._config.model,
            "messages": [{"role": "user", "content": prompt.encode(errors="replace").decode()}],
            "temperature": 0,
            "max_tokens": self._config.max_tokens,
        }
        if self._config.form == "json":
            body["response_format"] = _JSON
        return body

    async def _read(self, words: str) -> tuple[float, str]:
        """Its score, and why."""
        if self._config.form == "json":
            try:
                verdict = _VERDICTS.decode(words)
            except msgspec.MsgspecError as error:
                raise EngineError(f"the judge gave no JSON with a score: {words[-200:]!r}") from error
            return verdict.score, verdict.reason
        value = await self._matchers.number(self._config.pattern, words[-_SEARCHED:])
        if value is None:
            raise EngineError(f"the judge gave no score that `pattern` finds within `max_tokens`: {words[-200:]!r}")
        return value, words

    async def aclose(self) -> None:
        """See `Scorer`."""
        await self._asker.aclose()
        await self._matchers.aclose()
