"""Which of the sampled tokens of a step are its action: its tool calls, or, if it calls nothing, what it says."""

import numpy as np

from stepwell.rendering.messages import Tool
from stepwell.rendering.pieces import Piece, ReasoningPiece, TextPiece
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import answer_from_json
from stepwell.types import Mask, Step


def action_mask(renderer: Renderer, step: Step) -> Mask:
    """bool [R]: the tokens of the step's tool calls with their marks, else those of its text; never its reasoning.

    Exact, because the sampled tokens are read one by one by the parser that read them when they were sampled. A token
    that only became certain with later ones belongs where those do.
    """
    answer = answer_from_json(step.response) if step.response else None
    calls = answer.tool_calls if answer else ()
    prompt = renderer.decode(step.prompt_ids, skip_special=False)
    parser = renderer.parser([Tool(name=call.name) for call in calls], prompt)
    decoder = renderer.decoder()
    if step.prefill:  # a forced call was begun by the gateway
        parser.feed(renderer.decode(step.prompt_ids[-step.prefill :], skip_special=False))
    thinking = renderer.thinking_marks
    marks = _Marks(len(step.response_ids), in_call=step.prefill > 0, thought=thinking[1] if thinking else "")
    for place, token in enumerate(step.response_ids.tolist()):
        text = decoder.feed([token])
        marks.add(place, text, parser.feed(text) if text else [])
    marks.finish()
    action = marks.called if marks.called.any() else marks.said
    return action & ~np.isin(step.response_ids, sorted(renderer.eos_ids))


class _Marks:
    """Tokens by what they turned out to be."""

    def __init__(self, tokens: int, *, in_call: bool, thought: str) -> None:
        """`thought` is the mark that ends reasoning, if there is one."""
        self.called = np.zeros(tokens, np.bool_)
        self.said = np.zeros(tokens, np.bool_)
        self._in_call = in_call
        self._thought = thought
        self._since = 0  # first token that nothing is known of yet
        self._text = ""  # of those tokens

    def add(self, place: int, text: str, pieces: list[Piece]) -> None:
        """What the token at `place`, which adds `text`, made certain of itself and of those before it."""
        self._text += text
        if not pieces and self._thought and self._thought in self._text:
            self._since, self._text = place + 1, ""  # it ended the reasoning, and is part of nothing
        if pieces and self._in_call and isinstance(pieces[0], TextPiece | ReasoningPiece):
            self.called[self._since : place] = True  # the call's closing mark
            self._since = place
        own = slice(self._since, place + 1)
        for piece in pieces:
            self._in_call = not isinstance(piece, TextPiece | ReasoningPiece)
            if self._in_call:
                self.called[own] = True
            elif isinstance(piece, TextPiece):
                self.said[own] = True
        if pieces:
            self._since, self._text = place + 1, ""

    def finish(self) -> None:
        """What stands at the end belongs to the call before it: its closing mark."""
        if self._in_call:
            self.called[self._since :] = True
