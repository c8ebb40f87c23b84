"""The unmodified OpenAI SDK against a real server."""

import asyncio
import json
import threading
from concurrent.futures import Future

import httpx
import numpy as np
import openai
import pytest

from stepwell.errors import PoolError
from stepwell.gateway.app import create_app
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import serving, wait_until

USER = {"role": "user", "content": "hello"}
SEARCH = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Find a page.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def test_an_answer_is_the_sampled_text_and_its_step_holds_exactly_what_was_sampled(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["well met"])
    raw = client(serve(engine), path="t1").chat.completions.with_raw_response.create(model="tiny", messages=[USER])
    answer = raw.parse()
    step = pool.step(raw.headers["x-stepwell-step"])
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("well met", "stop")
    assert step.response_ids.tolist() == [*renderer.encode("well met"), *renderer.eos_ids]
    assert step.logprobs.tolist() == [-(i + 1) / 8 for i in range(len(step.response_ids))]
    assert np.array_equal(step.prompt_ids, engine.requests[0].prompt_ids)
    assert renderer.decode(step.prompt_ids, skip_special=False) == (
        "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (step.trajectory_id, step.index, step.model, step.finish_reason) == ("t1", 0, "tiny", "stop")
    assert json.loads(step.request) == {"model": "tiny", "messages": [USER]}
    assert (step.dialect, step.parent_id, step.fork, step.side, step.prefill) == ("chat", "", "root", "", 0)
    assert json.loads(step.response) == {"role": "assistant", "content": "well met"}
    assert answer.usage.prompt_tokens == len(step.prompt_ids)
    assert answer.usage.completion_tokens == len(step.response_ids)


def test_the_headers_name_step_trajectory_and_policy_version(renderer, serve, client):
    url = serve(ScriptedEngine(renderer, policy_version=7))
    create = client(url, path="t1").chat.completions.with_raw_response.create
    for stream in (False, True):
        headers = create(model="tiny", messages=[USER], stream=stream).headers
        assert headers["x-stepwell-trajectory"] == "t1"
        assert headers["x-stepwell-step"].startswith("step-")
        assert headers["x-stepwell-policy-version"] == "7"


def test_a_stream_has_the_same_text_and_the_same_step_as_a_whole_answer(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["héllo € wörld"])
    create = client(serve(engine), path="t1").chat.completions.create
    options = {"include_usage": True}
    chunks = list(create(model="tiny", messages=[USER], stream=True, stream_options=options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    step = pool.trajectory("t1").steps[0]
    assert text == "héllo € wörld"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage.completion_tokens == len(step.response_ids)
    assert len(chunks) > 10


def test_the_first_streamed_token_arrives_before_the_last_is_sampled(renderer, serve, client):
    engine = ScriptedEngine(renderer, ["abcdef"], wait_after=3)
    stream = client(serve(engine)).chat.completions.create(model="tiny", messages=[USER], stream=True)
    pieces = (chunk.choices[0].delta.content for chunk in stream)
    assert next(piece for piece in pieces if piece)
    assert engine.sampled == 3
    engine.go.set()
    list(pieces)
    assert engine.sampled > 3


def test_a_conversation_with_tools_extends_its_own_ids_turn_by_turn(hermes, serve, client, pool):
    call = '<tool_call>\n{"name":"search",  "arguments":{"query":"wells"}}\n</tool_call>'
    engine = ScriptedEngine(hermes, ["Let me look.\n" + call, call, "Found it."])
    create = client(serve(engine), path="t1").chat.completions.create
    messages = [{"role": "system", "content": "Be brief."}, USER]
    for turn in range(3):
        answer = create(model="tiny", messages=messages, tools=[SEARCH]).choices[0]
        messages.append(answer.message.model_dump(exclude_none=True))
        for tool_call in answer.message.tool_calls or ():
            assert json.loads(tool_call.function.arguments) == {"query": "wells"}
            messages.append({"role": "tool", "tool_call_id": tool_call.id, "content": f"result {turn}"})
    first, second, third = pool.trajectory("t1").steps
    assert (answer.finish_reason, answer.message.content) == ("stop", "Found it.")
    assert messages[2]["content"] == "Let me look."
    for earlier, later in ((first, second), (second, third)):
        seen = [*earlier.prompt_ids, *earlier.response_ids]
        assert later.prompt_ids[: len(seen)].tolist() == seen


def test_ids_that_no_tokenizer_would_choose_stay_in_the_next_prompt_as_sampled(renderer, serve, client, pool):
    letters = [renderer.encode(letter)[0] for letter in "hello"]
    assert letters != renderer.encode("hello").tolist()
    create = client(serve(ScriptedEngine(renderer, [letters])), path="t1").chat.completions.create
    answer = create(model="tiny", messages=[USER]).choices[0].message
    create(model="tiny", messages=[USER, {"role": "assistant", "content": answer.content}, USER])
    first, second = pool.trajectory("t1").steps
    assert second.prompt_ids[len(first.prompt_ids) :][:5].tolist() == letters


def test_a_possible_tool_call_is_held_back_and_then_sent_as_a_call(renderer, serve, client):
    create = client(serve(ScriptedEngine(renderer, ["search: wells"]))).chat.completions.create
    chunks = list(create(model="tiny", messages=[USER], tools=[SEARCH], stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == ""
    calls = [delta.tool_calls[0] for delta in deltas if delta.tool_calls]
    assert [call.function.name for call in calls if call.function.name] == ["search"]
    assert "".join(call.function.arguments or "" for call in calls) == '{"query": "wells"}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_tool_choice_none_leaves_the_reply_as_text(renderer, serve, client):
    create = client(serve(ScriptedEngine(renderer, ["search: wells"]))).chat.completions.create
    choice = create(model="tiny", messages=[USER], tools=[SEARCH], tool_choice="none").choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("search: wells", None)


def test_arguments_stream_as_they_are_sampled(hermes, serve, client):
    call = '<tool_call>\n{"name": "search", "arguments": {"query": "deep wells"}}\n</tool_call>'
    engine = ScriptedEngine(hermes, [call], wait_after=len(hermes.encode(call[: call.index("wells")])))
    stream = client(serve(engine)).chat.completions.create(model="tiny", messages=[USER], tools=[SEARCH], stream=True)
    arguments = ""
    for chunk in stream:
        for delta in chunk.choices[0].delta.tool_calls or ():
            arguments += delta.function.arguments or ""
        if "deep" in arguments and not engine.go.is_set():
            assert not engine.sampled > engine.wait_after
            engine.go.set()
    assert arguments == '{"query": "deep wells"}'


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_string_cuts_the_text_and_the_step_keeps_the_tokens(renderer, serve, client, pool, stream):
    engine = ScriptedEngine(renderer, ["one END two"])
    create = client(serve(engine), path="t1").chat.completions.create
    answer = create(model="tiny", messages=[USER], stop=["END", "never"], stream=stream)
    text = (
        "".join(chunk.choices[0].delta.content or "" for chunk in answer)
        if stream
        else answer.choices[0].message.content
    )
    (step,) = pool.trajectory("t1").steps
    assert text == "one "
    assert renderer.decode(step.response_ids) == "one END"
    assert (step.finish_reason, engine.cancelled) == ("stop", 1)


def test_max_tokens_ends_the_answer_with_length(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["abcdef"])), path="t1").chat.completions.create
    choice = create(model="tiny", messages=[USER], max_completion_tokens=2).choices[0]
    step = pool.trajectory("t1").steps[0]
    assert (choice.finish_reason, step.finish_reason, len(step.response_ids)) == ("length", "length", 2)


def test_max_tokens_beyond_the_context_is_clamped_to_what_fits(renderer, serve, client):
    engine = ScriptedEngine(renderer, ["hi"], context_length=100)
    client(serve(engine)).chat.completions.create(model="tiny", messages=[USER], max_tokens=128_000)
    assert engine.requests[0].sampling.max_tokens == 100 - len(engine.requests[0].prompt_ids)


def test_a_prompt_that_fills_the_context_is_refused_by_its_own_code(renderer, serve, client):
    create = client(serve(ScriptedEngine(renderer, context_length=10))).chat.completions.create
    with pytest.raises(openai.BadRequestError) as caught:
        create(model="tiny", messages=[USER], stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_logprobs_are_those_of_the_sampled_tokens(renderer, serve, client):
    create = client(serve(ScriptedEngine(renderer, ["ab c"]))).chat.completions.create
    whole = create(model="tiny", messages=[USER], logprobs=True).choices[0].logprobs.content
    chunks = create(model="tiny", messages=[USER], logprobs=True, stream=True)
    streamed = [t for chunk in chunks if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.content]
    assert [(t.token, t.logprob) for t in whole] == [("ab", -0.125), (" ", -0.25), ("c", -0.375)]
    assert streamed == whole


def test_sampling_parameters_reach_the_engine_and_the_step(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer)
    create = client(serve(engine), path="t1").chat.completions.create
    create(model="tiny", messages=[USER], temperature=0.5, top_p=0.9, seed=11, max_tokens=5)
    sampling = pool.trajectory("t1").steps[0].sampling
    assert sampling == engine.requests[0].sampling
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.max_tokens) == (0.5, 0.9, 11, 5)


def test_a_step_spans_the_policy_versions_that_sampled_it(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["abcdef"], publish_after=2)
    client(serve(engine), path="t1").chat.completions.create(model="tiny", messages=[USER])
    step = pool.trajectory("t1").steps[0]
    assert (step.policy_version_min, step.policy_version_max) == (3, 4)


def test_an_engine_error_midway_is_503_and_what_was_sampled_is_an_abort_step(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["abcdef"], fail_after=2)), path="t1").chat.completions.create
    with pytest.raises(openai.InternalServerError) as caught:
        create(model="tiny", messages=[USER])
    step = pool.trajectory("t1").steps[0]
    assert (caught.value.status_code, caught.value.code) == (503, "engine_error")
    assert (step.finish_reason, len(step.response_ids)) == ("abort", 2)


def test_an_engine_error_mid_stream_is_raised_by_the_client(renderer, serve, client, pool):
    create = client(serve(ScriptedEngine(renderer, ["abcdef"], fail_after=2)), path="t1").chat.completions.create
    with pytest.raises(openai.APIError, match="fails here"):
        list(create(model="tiny", messages=[USER], stream=True))
    assert pool.trajectory("t1").steps[0].finish_reason == "abort"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_the_engine_and_leaves_an_abort_step(renderer, serve, pool, stream):
    engine = ScriptedEngine(renderer, ["abcdef"], wait_after=2)
    url = serve(engine)

    async def leave() -> None:
        body = {"model": "tiny", "messages": [USER], "stream": stream}
        async with httpx.AsyncClient() as http:
            call = asyncio.create_task(http.post(f"{url}/t/t1/v1/chat/completions", json=body))
            await asyncio.to_thread(wait_until, lambda: engine.sampled == 2)
            call.cancel()

    asyncio.run(leave())
    wait_until(lambda: engine.cancelled == 1 and pool.stats().steps == 1)
    step = pool.trajectory("t1").steps[0]
    assert (step.finish_reason, len(step.response_ids)) == ("abort", 2)


def test_a_step_is_in_the_pool_before_the_stream_ends(renderer, serve, client, pool):
    stream = client(serve(ScriptedEngine(renderer)), path="t1").chat.completions.create(
        model="tiny", messages=[USER], stream=True
    )
    for chunk in stream:
        if chunk.choices[0].finish_reason:
            assert pool.stats().steps == 1


def test_calls_that_overlap_in_one_trajectory_get_different_indices(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["abc"], wait_after=1)
    create = client(serve(engine), key="sw-t1").chat.completions.create
    threads = [threading.Thread(target=create, kwargs={"model": "tiny", "messages": [USER]}) for _ in range(4)]
    for thread in threads:
        thread.start()
    wait_until(lambda: engine.sampled == 4)
    engine.go.set()
    for thread in threads:
        thread.join()
    assert [step.index for step in pool.trajectory("t1").steps] == [0, 1, 2, 3]


class FullDisk:
    """A pool that can be read but takes nothing in."""

    def __init__(self, pool):
        self.trajectory = pool.trajectory
        self.stats = pool.stats

    def append(self, records):
        failed = Future()
        failed.set_exception(PoolError("the disk is full"))
        return failed

    def heartbeat(self, producer, seconds):
        raise PoolError("the disk is full")


def test_an_answer_whose_step_cannot_be_stored_is_never_completed(renderer, client, pool):
    with serving(create_app(ScriptedEngine(renderer), renderer, FullDisk(pool))) as url:
        create = client(url, path="t1").chat.completions.create
        with pytest.raises(openai.InternalServerError, match="disk is full") as caught:
            create(model="tiny", messages=[USER])
        assert caught.value.status_code == 507
        chunks = []
        with pytest.raises(openai.APIError, match="disk is full"):
            chunks.extend(chunk for chunk in create(model="tiny", messages=[USER], stream=True))
        assert not any(chunk.choices[0].finish_reason for chunk in chunks)
        ready = httpx.get(f"{url}/ready")
        assert (ready.status_code, ready.json()["pool"]) == (503, False)


async def test_the_asynchronous_sdk_works_as_well(renderer, serve):
    url = serve(ScriptedEngine(renderer, ["hi"]))
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0) as sdk:
        stream = await sdk.chat.completions.create(model="tiny", messages=[USER], stream=True)
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "hi"
        assert [model.id async for model in sdk.models.list()] == ["tiny"]
