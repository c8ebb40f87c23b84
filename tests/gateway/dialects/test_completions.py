import json

import pytest

from stepwell.errors import InvalidRequest
from stepwell.gateway.dialects.base import Token
from stepwell.gateway.dialects.completions import CompletionsDialect
from stepwell.rendering.pieces import TextPiece
from tests.gateway.dialects.driver import answer_of, call_of, events, streamed

COMPLETIONS = CompletionsDialect()
PIECES = [TextPiece("ab"), TextPiece("c")]
TOKENS = (
    Token(text="ab", data=b"ab", logprob=-0.5, top=(Token(text="x", data=b"x", logprob=-1.0),)),
    Token(text="c", data=b"c", logprob=-0.25),
)


@pytest.mark.parametrize(
    ("prompt", "expected"), [("Hi", "Hi"), (["Hi"], "Hi"), ([5, 6], (5, 6)), ([[5, 6]], (5, 6)), ([7], (7,))]
)
def test_a_prompt_is_text_or_token_ids(prompt, expected):
    assert call_of(COMPLETIONS, prompt=prompt).prompt == expected


@pytest.mark.parametrize("prompt", [None, "", [], [[]], ["a", "b"], [[1], [2]], [1, "a"], [True], [-1], [2**31], {}])
def test_other_prompts_are_refused_by_name(prompt):
    with pytest.raises(InvalidRequest) as caught:
        call_of(COMPLETIONS, prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize(("name", "value"), [("echo", True), ("suffix", "end"), ("best_of", 3), ("logprobs", 21)])
def test_what_cannot_be_honoured_is_refused_by_name(name, value):
    with pytest.raises(InvalidRequest) as caught:
        call_of(COMPLETIONS, **{name: value})
    assert caught.value.param == name


def test_the_default_length_is_that_of_the_original():
    assert (call_of(COMPLETIONS).max_tokens, call_of(COMPLETIONS, max_tokens=9).max_tokens) == (16, 9)


def test_log_probabilities_of_the_sampled_token_alone_are_asked_for_by_zero():
    call = call_of(COMPLETIONS, logprobs=0)
    assert (call.logprobs, call.top_logprobs, call_of(COMPLETIONS).logprobs) == (True, 0, False)


def test_log_probabilities_have_the_older_shape_and_offsets_go_on_through_a_stream():
    call = call_of(COMPLETIONS, logprobs=1)
    answer = answer_of(PIECES, tokens=TOKENS)
    whole = json.loads(COMPLETIONS.answer(call, (answer,)))["choices"][0]["logprobs"]
    assert whole == {
        "tokens": ["ab", "c"],
        "token_logprobs": [-0.5, -0.25],
        "top_logprobs": [{"x": -1.0}, {}],
        "text_offset": [0, 2],
    }
    chunks = events(streamed(COMPLETIONS, call, PIECES, answer, TOKENS))[:-1]
    shown = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert {name: [value for part in shown for value in part[name]] for name in whole} == whole


def test_the_sdk_reads_both_forms(sdks):
    call = call_of(COMPLETIONS)
    sdks.say(COMPLETIONS.answer(call, (answer_of(PIECES),)))
    assert sdks.openai.completions.create(model="tiny", prompt="Hi").choices[0].text == "abc"
    sdks.say(streamed(COMPLETIONS, call, PIECES, answer_of(PIECES)))
    *chunks, usage = sdks.openai.completions.create(model="tiny", prompt="Hi", stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"
    assert (chunks[-1].choices[0].finish_reason, usage.usage.completion_tokens) == ("stop", 6)
