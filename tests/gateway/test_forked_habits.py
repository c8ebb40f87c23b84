"""What agents do that a fork of them must survive: each is recorded once, and played again from each of its steps."""

import json
from concurrent.futures import ThreadPoolExecutor

import anthropic
import httpx
import openai
import pytest
from starlette.testclient import TestClient
from tokenizers import Regex, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Split

from stepwell.gateway.app import create_app
from stepwell.gateway.keys import KeyRing
from stepwell.rendering.renderer import Renderer
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import CHATML

LOOK = '<tool_call>\n{"name": "look", "arguments": {"at": "x"}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}


def opened(pool, index, name="fork", origin="trunk"):
    """A trajectory that is forked from another one at a step."""
    group = GroupInfo(task_id="t", size=1, origin_id=origin, origin_index=index)
    pool.put(group, TrajectoryInfo(id=name, group_id=group.id))
    return name


def ids(steps):
    return [step.prompt_ids.tolist() for step in steps]


@pytest.fixture
def replies():
    """Each answer is another one: what comes again is from the record."""
    return [f"reply{number}" for number in range(200)]


@pytest.fixture
def engine(renderer, replies):
    return ScriptedEngine(renderer, replies)


@pytest.fixture
def ask(engine, serve, client):
    """Ask one question in a trajectory, and be told the answers."""
    url = serve(engine)
    create = {}

    def ask(trajectory, *said, retry=0, **options):
        if trajectory not in create:
            create[trajectory] = client(url, path=trajectory).chat.completions.create
        messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(said)]
        headers = {"x-stainless-retry-count": str(retry)}
        answer = create[trajectory](model="tiny", messages=messages, extra_headers=headers, **options)
        told = [choice.message.content for choice in answer.choices]
        return told if "n" in options else told[0]

    ask.url = url
    return ask


@pytest.mark.parametrize("index", [0, 1, 2])
def test_subagents_may_call_in_another_order_than_they_did(ask, engine, pool, index):
    record = {question: ask("trunk", question) for question in ("one", "two", "three")}
    opened(pool, index)
    sampled = len(engine.requests)
    told = {question: ask("fork", question) for question in ("three", "two", "one")[2 - index :]}
    past = ("one", "two", "three")[:index]
    assert {question: told[question] for question in past} == {question: record[question] for question in past}
    assert len(engine.requests) - sampled == 1
    assert ids(pool.trajectory("fork").steps) == ids(pool.trajectory("trunk").steps[index : index + 1])


def test_subagents_may_call_at_once(ask, engine, pool):
    record = [ask("trunk", f"question {number}") for number in range(6)]
    opened(pool, 4)
    with ThreadPoolExecutor(6) as threads:
        told = list(threads.map(lambda number: ask("fork", f"question {number}"), range(5)))
    assert told == [*record[:4], "reply6"]
    assert [step.index for step in pool.trajectory("fork").steps] == [4]


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_question_that_is_asked_several_times_is_answered_as_often_from_the_record(ask, pool, index):
    record = [ask("trunk", "same") for _ in range(3)]
    opened(pool, index)
    told = [ask("fork", "same") for _ in range(3)]
    assert told[:index] == record[:index]
    assert set(told[index:]).isdisjoint(record)
    assert [step.index for step in pool.trajectory("fork").steps] == list(range(index, 3))


def test_a_call_that_its_sdk_sends_again_is_no_further_question(ask, pool):
    record = [ask("trunk", "same") for _ in range(3)]
    opened(pool, 2)
    told = [ask("fork", "same"), ask("fork", "same", retry=1), ask("fork", "same"), ask("fork", "same", retry=1)]
    assert told == [record[0], record[0], record[1], record[1]]
    assert ask("fork", "same") not in record


@pytest.mark.parametrize(("index", "replayed", "anew"), [(0, 0, [0, 1, 2]), (1, 0, [1, 2, 3]), (2, 2, [2])])
def test_several_answers_to_one_call_are_replayed_together_and_in_order(ask, pool, index, replayed, anew):
    first = ask("trunk", "q", n=2)
    ask("trunk", "q", first[1], "next")
    opened(pool, index)
    told = ask("fork", "q", n=2)
    assert (told == first) is bool(replayed)
    ask("fork", "q", told[1], "next")
    assert [step.index for step in pool.trajectory("fork").steps] == anew


def test_another_number_of_answers_is_a_difference(ask, pool):
    ask("trunk", "q", "a", "next", n=2)
    ask("trunk", "later")
    opened(pool, 2)
    with pytest.raises(openai.ConflictError, match="it wants 3 answers, and the record has another number"):
        ask("fork", "q", "a", "next", n=3)


@pytest.mark.parametrize("index", [1, 2, 3])
def test_an_answer_that_was_cut_off_is_none_and_the_one_in_its_place_is(ask, engine, pool, index):
    first = ask("trunk", "q")
    engine.fail_after = 2
    with pytest.raises(openai.InternalServerError):
        ask("trunk", "q", first, "next")
    engine.fail_after = None
    second = ask("trunk", "q", first, "next")
    ask("trunk", "q", first, "next", second, "last")
    assert [step.finish_reason for step in pool.trajectory("trunk").steps] == ["stop", "abort", "stop", "stop"]
    opened(pool, index)
    assert ask("fork", "q") == first
    told = ask("fork", "q", first, "next")
    assert (told == second) is (index == 3)
    ask("fork", "q", first, "next", told, "last")
    assert [step.index for step in pool.trajectory("fork").steps] == ([3] if index == 3 else [index, index + 1])


def test_only_a_cut_answer_to_a_prompt_is_said_to_be_one(ask, engine, pool):
    ask("trunk", "q")
    engine.fail_after = 2
    with pytest.raises(openai.InternalServerError):
        ask("trunk", "cut")
    engine.fail_after = None
    ask("trunk", "other")
    opened(pool, 2)
    with pytest.raises(openai.ConflictError, match="an answer that was cut off, which cannot be repeated"):
        ask("fork", "cut")


def test_a_fork_may_be_forked(ask, engine, pool):
    conversation = ["q"]
    for _ in range(3):
        conversation += [ask("trunk", *conversation), "next"]
    opened(pool, 1, "child")
    child = ["q"]
    for _ in range(3):
        child += [ask("child", *child), "next"]
    assert (child[1] == conversation[1], child[3] != conversation[3]) == (True, True)
    opened(pool, 2, "grandchild", "child")
    sampled = len(engine.requests)
    grandchild = ["q"]
    for _ in range(3):
        grandchild += [ask("grandchild", *grandchild), "next"]
    assert (grandchild[:4], grandchild[5] != child[5]) == (child[:4], True)
    assert len(engine.requests) - sampled == 1
    assert ids(pool.trajectory("grandchild").steps) == ids(pool.trajectory("child").steps[1:])


def test_a_fork_of_itself_is_refused(ask, pool):
    ask("trunk", "q")
    opened(pool, 0, "left", "right")
    opened(pool, 0, "right", "left")
    with pytest.raises(openai.ConflictError, match="'left' is a fork of itself, by way of 'left'"):
        ask("left", "another")


@pytest.mark.parametrize("index", [2, 7])
def test_a_fork_from_a_step_that_there_is_not_is_refused(ask, pool, index):
    ask("trunk", "q")
    opened(pool, index)
    with pytest.raises(openai.ConflictError, match=f"step {index} anew, but its origin has none .*, or 1, behind its"):
        ask("fork", "q")


@pytest.mark.parametrize("how", ["terminated", "truncated", "failed"])
def test_a_fork_does_not_mind_how_its_origin_ended(ask, pool, how):
    first = ask("trunk", "q")
    pool.put(Annotation.end("trunk", how))
    opened(pool, 1)
    assert ask("fork", "q") == first
    assert ask("fork", "q", first, "more") not in (first, "")


def test_a_gateway_that_is_started_again_goes_on_with_a_fork_in_the_middle_of_its_past(
    ask, renderer, serve, client, pool
):
    first = ask("trunk", "q")
    second = ask("trunk", "q", first, "next")
    ask("trunk", "q", first, "next", second, "last")
    opened(pool, 2)
    assert ask("fork", "q") == first
    create = client(serve(ScriptedEngine(renderer, ["new"])), path="fork").chat.completions.create
    said = [{"role": "user", "content": "q"}, {"role": "assistant", "content": first}]
    said += [{"role": "user", "content": "next"}]
    assert create(model="tiny", messages=said).choices[0].message.content == second
    said += [{"role": "assistant", "content": second}, {"role": "user", "content": "last"}]
    assert create(model="tiny", messages=said).choices[0].message.content == "new"


def test_a_past_that_is_longer_than_what_a_session_keeps_is_replayed_too(ask, engine, pool):
    conversation = ["q"]
    for _ in range(70):
        conversation += [ask("trunk", *conversation), "and"]
    opened(pool, 69)
    sampled, again = len(engine.requests), ["q"]
    for _ in range(70):
        again += [ask("fork", *again), "and"]
    assert again[: 2 * 69] == conversation[: 2 * 69]
    assert len(engine.requests) - sampled == 1
    assert ids(pool.trajectory("fork").steps) == ids(pool.trajectory("trunk").steps[69:])


@pytest.fixture
def tools(hermes, serve, pool):
    """An agent of Anthropic's SDK that calls a tool three times, streamed or not; gives what it was told, ids too."""
    engine = ScriptedEngine(hermes, [*[f"{number} {LOOK}" for number in range(99)]])
    url = serve(engine)

    def play(trajectory, streamed):
        messages, told = [{"role": "user", "content": "look around"}], []
        with anthropic.Anthropic(base_url=f"{url}/t/{trajectory}", api_key="none", max_retries=0) as client:
            for _ in range(3):
                asked = {"model": "tiny", "max_tokens": 200, "messages": messages}
                asked["tools"] = [{"name": "look", "input_schema": SCHEMA}]
                if streamed:
                    with client.messages.stream(**asked) as stream:
                        answer = stream.get_final_message()
                else:
                    answer = client.messages.create(**asked)
                call = answer.content[-1]
                told.append((answer.content[0].text, call.id, call.input, answer.stop_reason))
                messages.append({"role": "assistant", "content": answer.content})
                result = {"type": "tool_result", "tool_use_id": call.id, "content": f"saw {call.id}"}
                messages.append({"role": "user", "content": [result]})
        return told

    play.engine = engine
    return play


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_calls_in_anthropics_dialect_are_replayed_with_their_ids(tools, pool, index, streamed):
    record = tools("trunk", streamed)
    opened(pool, index)
    told = tools("fork", streamed)
    assert told[:index] == record[:index]
    assert told[index][0] != record[index][0]
    assert len(tools.engine.requests) == 3 + 3 - index
    fork, trunk = pool.trajectory("fork").steps, pool.trajectory("trunk").steps
    assert fork[0].prompt_ids.tolist() == trunk[index].prompt_ids.tolist()


def test_a_stream_that_is_left_in_the_middle_of_a_replay_is_replayed_again(ask, pool):
    first = ask("trunk", "q")
    ask("trunk", "q", first, "next")
    opened(pool, 1)
    body = {"model": "tiny", "messages": [{"role": "user", "content": "q"}], "stream": True}
    with httpx.stream("POST", f"{ask.url}/t/fork/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    text = httpx.post(f"{ask.url}/t/fork/v1/chat/completions", json=body).text
    parts = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "".join(part["choices"][0]["delta"].get("content") or "" for part in parts if part["choices"]) == first


@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_responses_that_refer_to_those_before_them_are_replayed(renderer, replies, pool, tmp_path, index, confined):
    keys = KeyRing.open(tmp_path / "keys.json")
    engine = ScriptedEngine(renderer, replies)

    def play(http, trajectory):
        told, previous = [], None
        key = keys.session_key(trajectory) if confined else keys.create(trajectory, ["agent"])
        for question in ("one", "two", "three"):
            body = {"model": "tiny", "input": question, "previous_response_id": previous}
            headers = {"authorization": f"Bearer {key}"}
            answer = http.post(f"/t/{trajectory}/v1/responses", json=body, headers=headers).raise_for_status().json()
            told.append(answer["output"][0]["content"][0]["text"])
            previous = answer["id"]
        return told

    with TestClient(create_app(engine, renderer, pool, keys=keys)) as http:
        record = play(http, "trunk")
        opened(pool, index)
        told = play(http, "fork")
    assert told[:index] == record[:index]
    assert set(told[index:]).isdisjoint(record)
    assert ids(pool.trajectory("fork").steps[:1]) == ids(pool.trajectory("trunk").steps[index : index + 1])


@pytest.fixture
def worded():
    """A renderer of a few words: all others are one and the same token."""
    words = ["<unk>", "<|im_start|>", "<|im_end|>", "user", "assistant", "\n", " ", "yes"]
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Split(Regex(r"\w+|\s"), "isolated")
    tokenizer.decoder = Fuse()
    tokenizer.add_special_tokens(words[1:3])
    return Renderer(tokenizer, CHATML, special_tokens={}, eos_ids=[2], tool_format="line")


@pytest.mark.parametrize("index", [0, 1, 2])
def test_words_that_the_tokenizer_does_not_know_are_in_the_past_of_a_fork_too(worded, serve, client, pool, index):
    engine = ScriptedEngine(worded, [[7, 4, 1, 4]])  # with a token in it that no client ever sees
    url = serve(engine)

    def play(trajectory):
        messages = []
        for question in ("what", "and then", "yes"):
            messages.append({"role": "user", "content": question})
            answer = client(url, path=trajectory).chat.completions.create(model="tiny", messages=messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})

    play("trunk")
    opened(pool, index)
    play("fork")
    assert len(engine.requests) == 3 + 3 - index
    assert ids(pool.trajectory("fork").steps) == ids(pool.trajectory("trunk").steps[index:])
