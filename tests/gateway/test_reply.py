from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.engines.base import Chunk, Generation
from stepwell.errors import EngineError
from stepwell.gateway.dialects.base import ChatCall, ToolChoice
from stepwell.gateway.reply import Draft, Prompt, Source, StopFilter
from stepwell.rendering.bridge import Bridged
from stepwell.rendering.messages import Message, Tool
from stepwell.rendering.pieces import CallArguments, CallOpened, TextPiece, message_of
from tests.fakes.models import tiny_renderer

RENDERER = tiny_renderer("hermes")
TEXTS = st.text(st.sampled_from("hello ab€"), max_size=20)
STOPS = st.lists(st.text(st.sampled_from("hello ab€"), min_size=1, max_size=4), max_size=3)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


def _draft(**options) -> Draft:
    call = ChatCall(dialect="chat", model="m", messages=(Message(role="user", content="q"),), **options)
    ids = RENDERER.encode("q")
    bridged = Bridged(prompt_ids=ids, text="q", reused=0, parent_id="", fork="root")
    source = Source(model="m", token_source="engine")
    return Draft(RENDERER, call, Generation(prompt_ids=ids), Prompt(bridged=bridged), 0, source, "step")


def _chunks(text: str, finish: str | None = "stop") -> list[Chunk]:
    ids = [*RENDERER.encode(text).tolist(), *RENDERER.eos_ids]
    last = len(ids) - 1
    return [
        Chunk(
            token_ids=(token,),
            logprobs=(-1.0,),
            policy_version=2,
            finish_reason=finish if place == last else None,
        )
        for place, token in enumerate(ids)
    ]


def _pieces(draft: Draft, chunks: list[Chunk]) -> list:
    deltas = [*(draft.take(chunk) for chunk in chunks), draft.finish()]
    return [piece for delta in deltas if delta for piece in delta.pieces]


@given(text=TEXTS, stops=STOPS, cuts=st.lists(st.integers(0, 20), max_size=4))
def test_what_passes_is_the_text_before_the_first_stop_text_however_it_is_cut(text, stops, cuts):
    places = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    stop = StopFilter(stops)
    passed = ""
    for start, end in pairwise(places):
        passed += stop.feed(text[start:end])
        assert not any(one in passed for one in stops)
    passed += stop.finish()
    assert text.startswith(passed)
    assert bool(stop.found) == any(one in text for one in stops)
    if stop.found:
        assert text[len(passed) :].startswith(stop.found)
    else:
        assert passed == text


def test_text_that_cannot_begin_a_stop_text_passes_at_once():
    stop = StopFilter(["END"])
    assert [stop.feed(letter) for letter in "x EN. ENDy"] == ["x", " ", "", "", "EN.", " ", "", "", "", ""]


def test_the_pieces_of_a_draft_add_up_to_its_message_and_its_step_has_every_token():
    draft = _draft(tools=(Tool(name="f"),))
    chunks = _chunks("Look. " + CALL)
    pieces = _pieces(draft, chunks)
    step = draft.step(4, "t", draft.finish_reason, bytes)
    assert message_of(pieces) == draft.message
    assert [piece.name for piece in pieces if isinstance(piece, CallOpened)] == ["f"]
    assert "".join(piece.text for piece in pieces if isinstance(piece, CallArguments)) == '{"x": 1}'
    assert step.response_ids.tolist() == [chunk.token_ids[0] for chunk in chunks]
    assert (step.index, step.trajectory_id, step.fork, step.policy_version_max) == (4, "t", "root", 2)
    assert (draft.answer(step).end, draft.message.content) == ("tool_calls", "Look.")


def test_tokens_that_arrived_together_are_shown_together():
    draft = _draft()
    ids = tuple(RENDERER.encode("abc").tolist())
    delta = draft.take(Chunk(token_ids=ids, logprobs=(-1.0,) * len(ids), policy_version=2))
    assert delta is not None
    assert delta.pieces == (TextPiece("abc"),)


def test_the_tokens_of_a_delta_are_those_since_the_one_before():
    draft = _draft(logprobs=True)
    deltas = [delta for delta in (*(draft.take(chunk) for chunk in _chunks("ab c€")), draft.finish()) if delta]
    tokens = [token for delta in deltas for token in delta.tokens]
    assert b"".join(token.data for token in tokens).decode() == "ab c€"
    assert tokens == list(draft.answer(draft.step(0, "t", "stop", bytes)).tokens)


def test_the_one_call_that_is_allowed_ends_the_answer():
    draft = _draft(tools=(Tool(name="f"),), tool_choice=ToolChoice(parallel=False))
    for chunk in _chunks(CALL + "\n" + CALL):
        draft.take(chunk)
        if draft.stopped:
            break
    draft.finish()
    assert (draft.finish_reason, len(draft.message.tool_calls)) == ("stop", 1)


@pytest.mark.parametrize("finish", [None, "abort"])
def test_an_answer_that_does_not_end_properly_is_an_engine_error(finish):
    draft = _draft()
    _pieces(draft, _chunks("abc", finish))
    with pytest.raises(EngineError, match="before it was complete"):
        _ = draft.finish_reason
    assert draft.step(0, "t", "abort", bytes).trainable is False
    assert np.all(draft.step(0, "t", "abort", bytes).logprobs == -1.0)
