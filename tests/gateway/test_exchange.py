"""What becomes of a call between the dialect and the engine."""

import json
import socket
import threading
from concurrent.futures import Future
from contextlib import aclosing

import httpx
import openai
import pytest

from stepwell.gateway.admission import Admission
from stepwell.gateway.app import create_app
from stepwell.gateway.callers import Caller
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects import DIALECTS
from stepwell.gateway.dialects.base import Delta
from stepwell.gateway.exchange import Exchange
from stepwell.gateway.recall import Recall
from stepwell.gateway.redact import Redactor
from stepwell.gateway.sessions import Sessions
from tests.fakes.engines import ScriptedEngine
from tests.fakes.servers import serving

USER = {"role": "user", "content": "hello"}
SEARCH = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}


def test_each_of_n_choices_is_a_step_with_the_same_prompt_and_its_own_seed(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["one", "two", "three"])
    create = client(serve(engine), path="t1").chat.completions.with_raw_response.create
    raw = create(model="tiny", messages=[USER], n=3, seed=5)
    answer = raw.parse()
    steps = [pool.step(step_id) for step_id in raw.headers["x-stepwell-step"].split(",")]
    assert sorted(choice.message.content for choice in answer.choices) == ["one", "three", "two"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [json.loads(step.response)["content"] for step in steps] == [c.message.content for c in answer.choices]
    assert [step.sampling.seed for step in steps] == [5, 6, 7]
    assert len({tuple(step.prompt_ids) for step in steps}) == 1
    assert answer.usage.completion_tokens == sum(len(step.response_ids) for step in steps)


def test_the_choices_of_a_stream_arrive_interleaved_and_whole(renderer, serve, client):
    engine = ScriptedEngine(renderer, ["one", "two"])
    stream = client(serve(engine)).chat.completions.create(model="tiny", messages=[USER], n=2, stream=True)
    texts, ends = ["", ""], []
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert (sorted(texts), ends) == (["one", "two"], ["stop", "stop"])


def test_one_choice_that_fails_fails_the_call_and_stops_the_others(renderer, serve, client, pool):
    class Half(ScriptedEngine):
        async def generate(self, request):
            if len(self.requests):
                self.fail_after = 0
            async for chunk in super().generate(request):
                yield chunk

    with pytest.raises(openai.InternalServerError, match="fails here"):
        client(serve(Half(renderer)), path="t1").chat.completions.create(model="tiny", messages=[USER], n=2)
    assert pool.stats().steps <= 1  # what the other had sampled by then


def test_a_forced_call_begins_in_the_prompt_and_the_engine_is_kept_to_its_schema(hermes, serve, client, pool):
    engine = ScriptedEngine(hermes, ['{"name": "search", "arguments": {"query": "wells"}}'])
    create = client(serve(engine), path="t1").chat.completions.create
    answer = create(model="tiny", messages=[USER], tools=[SEARCH], tool_choice="required").choices[0]
    (call,) = answer.message.tool_calls
    (step,) = pool.trajectory("t1").steps
    assert (call.function.name, json.loads(call.function.arguments)) == ("search", {"query": "wells"})
    assert answer.finish_reason == "tool_calls"
    assert hermes.decode(step.prompt_ids).endswith("assistant\n<tool_call>\n")
    assert hermes.decode(step.prompt_ids[-step.prefill :]) == "<tool_call>\n"
    assert step.sampling.constrained
    assert json.loads(engine.requests[0].json_schema)


def test_a_conversation_goes_on_after_a_forced_call_with_the_same_ids(hermes, serve, client, pool):
    engine = ScriptedEngine(hermes, ['{"name": "search", "arguments": {"query": "wells"}}', "Found."])
    create = client(serve(engine), path="t1").chat.completions.create
    message = create(model="tiny", messages=[USER], tools=[SEARCH], tool_choice="required").choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "water"}
    create(model="tiny", messages=[USER, message.model_dump(exclude_none=True), result], tools=[SEARCH])
    first, second = pool.trajectory("t1").steps
    before = [*first.prompt_ids, *first.response_ids]
    assert (second.prompt_ids[: len(before)].tolist(), second.fork) == (before, "")


def test_the_only_call_that_is_allowed_ends_the_answer(hermes, serve, client, pool):
    block = '<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n</tool_call>'
    engine = ScriptedEngine(hermes, [block + "\n" + block])
    create = client(serve(engine), path="t1").chat.completions.create
    answer = create(model="tiny", messages=[USER], tools=[SEARCH], parallel_tool_calls=False).choices[0]
    assert (len(answer.message.tool_calls), answer.finish_reason, engine.cancelled) == (1, "tool_calls", 1)
    assert block.startswith(hermes.decode(pool.trajectory("t1").steps[0].response_ids))


def test_a_response_format_reaches_the_engine_and_excludes_tools_that_may_be_called(renderer, serve, client):
    engine = ScriptedEngine(renderer, ['{"a": 1}'])
    create = client(serve(engine)).chat.completions.create
    create(model="tiny", messages=[USER], response_format={"type": "json_object"})
    assert json.loads(engine.requests[0].json_schema) == {"type": "object"}
    with pytest.raises(openai.BadRequestError, match="response format"):
        create(model="tiny", messages=[USER], response_format={"type": "json_object"}, tools=[SEARCH])


def test_other_names_of_the_model_work_if_they_are_configured(renderer, serve, client):
    url = serve(ScriptedEngine(renderer), GatewayConfig(model_aliases=("gpt-5",)))
    create = client(url).chat.completions.create
    assert create(model="gpt-5", messages=[USER]).model == "gpt-5"
    with pytest.raises(openai.NotFoundError):
        create(model="gpt-6", messages=[USER])
    anything = client(serve(ScriptedEngine(renderer), GatewayConfig(model_aliases=("*",))))
    assert anything.chat.completions.create(model="gpt-6", messages=[USER]).choices


def test_responses_continue_each_other_by_id_and_by_reference(renderer, serve, client, pool):
    sdk = client(serve(ScriptedEngine(renderer, ["one", "two", "three"])))
    first = sdk.responses.create(model="tiny", input="hello", instructions="Be brief.")
    second = sdk.responses.create(model="tiny", input="and", previous_response_id=first.id, instructions="Be brief.")
    steps = [pool.step(response.id.removeprefix("resp_")) for response in (first, second)]
    assert (second.output_text, steps[1].parent_id, steps[1].fork) == ("two", steps[0].id, "")
    items = [
        {"role": "user", "content": "hello"},
        {"type": "item_reference", "id": first.output[0].id},
        {"role": "user", "content": "and"},
    ]
    third = sdk.responses.create(model="tiny", input=items, instructions="Be brief.")
    stored = pool.step(third.id.removeprefix("resp_"))
    assert stored.prompt_ids.tolist() == steps[1].prompt_ids.tolist()
    with pytest.raises(openai.BadRequestError, match="not stored here"):
        sdk.responses.create(model="tiny", input="x", previous_response_id="resp_step-nowhere")


def test_a_plain_prompt_is_continued_as_it_is_by_text_and_by_ids(renderer, serve, client, pool):
    sdk = client(serve(ScriptedEngine(renderer, [" there"])), path="t1")
    sdk.completions.create(model="tiny", prompt="hello")
    sdk.completions.create(model="tiny", prompt=renderer.encode("hello there").tolist())
    first, second = pool.trajectory("t1").steps
    assert first.prompt_ids.tolist() == renderer.encode("hello").tolist()
    assert second.prompt_ids.tolist() == renderer.encode("hello there").tolist()
    assert (first.dialect, second.fork) == ("completions", "client")


def test_secrets_are_removed_from_what_is_stored_of_a_call_if_one_asks(renderer, serve, client, pool):
    engine = ScriptedEngine(renderer, ["it is sk-abcdefghijklmnopqrstuvwx"])
    url = serve(engine, GatewayConfig(redact=("secrets", "(?i)internal-[0-9]+")))
    text = "my key is sk-abcdefghijklmnopqrstuvwx of Internal-77"
    create = client(url, path="t1").chat.completions.create
    answer = create(model="tiny", messages=[{"role": "user", "content": text}]).choices[0].message.content
    (step,) = pool.trajectory("t1").steps
    content = json.loads(step.request)["messages"][0]["content"]
    assert content == "my key is [redacted] of [redacted]"
    assert (answer, json.loads(step.response)["content"]) == (engine.replies[0], "it is [redacted]")
    assert "sk-abc" in renderer.decode(step.prompt_ids)  # what the model saw stays exact


def test_top_logprobs_are_asked_of_the_engine(renderer, serve, client):
    engine = ScriptedEngine(renderer)
    client(serve(engine)).chat.completions.create(model="tiny", messages=[USER], logprobs=True, top_logprobs=2)
    assert engine.requests[0].top_logprobs == 2


def _said(text: str, stream: bool) -> str:
    if not stream:
        return json.loads(text)["choices"][0]["message"]["content"]
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(event["choices"][0]["delta"].get("content", "") for event in events)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_while_its_step_is_stored_gets_that_answer_when_it_asks_again(renderer, pool, stream):
    class Slow:
        """A pool whose commits wait until they may."""

        def __init__(self):
            self.go, self.asked = threading.Event(), threading.Event()

        def __getattr__(self, name):
            return getattr(pool, name)

        def append(self, records):
            done = Future()

            def commit():
                self.asked.set()
                self.go.wait(20)
                done.set_result(pool.append(records).result())

            threading.Thread(target=commit, daemon=True).start()
            return done

    slow = Slow()
    body = json.dumps({"model": "tiny", "messages": [USER], "stream": stream}).encode()
    with serving(create_app(ScriptedEngine(renderer, ["one", "two"]), renderer, slow)) as url:
        head = f"POST /t/t1/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
        with socket.create_connection(url.removeprefix("http://").split(":")) as connection:
            connection.sendall(head.encode() + body)
            assert slow.asked.wait(20)
        slow.go.set()
        again = httpx.post(f"{url}/t/t1/v1/chat/completions", content=body, headers={"x-stainless-retry-count": "1"})
    assert _said(again.text, stream) == "one"
    assert [step.finish_reason for step in pool.trajectory("t1").steps] == ["stop"]


def test_an_answer_that_is_given_again_has_the_same_tokens_and_the_same_end(renderer, serve, client):
    create = client(serve(ScriptedEngine(renderer, ["one STOP two"])), path="t1").chat.completions.create
    call = {"model": "tiny", "messages": [USER], "stop": "STOP", "logprobs": True}
    first = create(**call)
    again = create(**call, extra_headers={"x-stainless-retry-count": "1"})
    assert again.model_dump() == first.model_dump()


async def test_a_step_is_stored_before_the_piece_that_was_held_back_is_shown(renderer, pool):
    engine = ScriptedEngine(renderer, ["hello STO"])
    dialects = {dialect.name: dialect for dialect in DIALECTS}
    recall = Recall(pool, dialects)
    sessions = Sessions(pool, renderer, recall, Admission(pool, None), 8, 2**20)
    exchange = Exchange(engine, renderer, pool, sessions, recall, GatewayConfig(), Redactor(()))
    body = json.dumps({"model": "tiny", "messages": [USER], "stop": "STOP", "stream": True}).encode()
    call = dialects["chat"].parse(json.loads(body), body)
    caller = Caller(trajectory_id="t1", agent="", scope=b"")
    async with aclosing(exchange.play(call, caller)) as events:
        async for event in events:
            if isinstance(event, Delta) and any("STO" in getattr(piece, "text", "") for piece in event.pieces):
                break
    assert [step.finish_reason for step in pool.trajectory("t1").steps] == ["stop"]
