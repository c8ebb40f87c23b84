"""Reasoning at the beginning of a reply, between the model's own marks."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from stepwell.rendering.pieces import ReasoningPiece
from stepwell.rendering.source import Marks, Reading, Source


@dataclass(frozen=True, slots=True)
class Thinking:
    """The marks around a model's reasoning."""

    open: str
    close: str

    def is_open(self, prompt_end: str) -> bool:
        """Whether a prompt that ends so has begun the reasoning itself."""
        return prompt_end.rstrip().endswith(self.open)

    def read(self, source: Source, inside: bool) -> Reading[None]:
        """Read the reasoning, if the reply begins with any; `inside`: its opening mark is in the prompt already.

        Only there: a mark further on is something that the model talks about.
        """
        if not inside:
            yield from source.skip_space()
            if not (yield from source.accept(self.open)):
                source.refuse()
                return
        source.turn()
        yield from source.prose(Marks(self.close), ReasoningPiece)
        source.turn()

    def inline(self, reasoning: str, content: str) -> str:
        """An answer with its reasoning in front, for chat templates that know no field for it."""
        return f"{self.open}\n{reasoning}\n{self.close}\n\n{content}"


_KNOWN: Final = (Thinking("<think>", "</think>"), Thinking("[THINK]", "[/THINK]"))


def find_thinking(template: str, tokens: Collection[str]) -> Thinking | None:
    """The marks of a model that reasons: its chat template mentions them, or they are tokens; None for other models."""
    return next((marks for marks in _KNOWN if marks.close in template or marks.close in tokens), None)
