from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.bridge import Asked, Bridged, Memory, Seen, bridge, bridge_ids, bridge_text, seen
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import message_of
from stepwell.rendering.renderer import Renderer
from tests.fakes.models import CHATML, tiny_renderer

RENDERER = tiny_renderer()
TEXTS = st.text(st.sampled_from("hello ab\n€é"), max_size=12)
TRIMMING = CHATML.replace("message['content'] }}", "message['content'] | trim }}")
THINKING = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'].split('</think>')[-1] if not loop.last else message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}{# <think> #}"
)


def user(content: str) -> Message:
    return Message(role="user", content=content)


def assistant(content: str) -> Message:
    return Message(role="assistant", content=content)


def _pieces(text: str) -> list[int]:
    """A tokenisation that the tokenizer itself would not choose: character by character."""
    return [int(i) for character in text for i in RENDERER.encode(character)]


def _answered(
    renderer: Renderer, memory: Memory, asked: Asked, response: str | Sequence[int], name: str = "s"
) -> tuple[Bridged, Seen]:
    """Bridge a conversation, and remember that the engine answered `response` to it."""
    bridged = bridge(renderer, memory, asked)
    ids = renderer.encode(response).tolist() if isinstance(response, str) else list(response)
    ids = np.array([*ids, *renderer.eos_ids], np.int32)
    parser = renderer.parser(asked.tools, bridged.text)
    answer = message_of([*parser.feed(renderer.decode(ids[:-1])), *parser.finish()])
    step = seen(renderer, name, asked, bridged, ids, answer)
    memory.add(step)
    return bridged, step


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_every_prompt_of_a_conversation_begins_with_the_step_before_and_reads_as_the_conversation(turns):
    messages: list[Message] = []
    memory, before = Memory(), None
    for number, (question, answer) in enumerate(turns):
        messages.append(user(question))
        bridged, step = _answered(RENDERER, memory, Asked(messages=tuple(messages)), _pieces(answer), str(number))
        assert RENDERER.decode(bridged.prompt_ids, skip_special=False) == bridged.text == RENDERER.text(messages)
        if before is None:
            assert (bridged.fork, bridged.parent_id, bridged.reused) == ("root", "", 0)
        else:
            assert (bridged.fork, bridged.parent_id, bridged.reused) == ("", before.step_id, len(before.ids))
            assert bridged.prompt_ids[: bridged.reused].tolist() == before.ids.tolist()
        before = step
        messages.append(assistant(answer))


def test_the_longest_earlier_step_is_extended():
    memory = Memory()
    _answered(RENDERER, memory, Asked(messages=(user("a"),)), "b", "short")
    longer = (user("a"), assistant("b"), user("c"))
    _answered(RENDERER, memory, Asked(messages=longer), "d", "long")
    assert bridge(RENDERER, memory, Asked(messages=(*longer, assistant("d"), user("e")))).parent_id == "long"
    assert bridge(RENDERER, memory, Asked(messages=(user("a"), assistant("b"), user("x")))).parent_id == "short"


def test_a_history_that_has_nothing_to_do_with_what_was_said_is_the_clients_fork_without_a_parent():
    memory = Memory()
    _answered(RENDERER, memory, Asked(messages=(user("a"),)), "b")
    other = bridge(RENDERER, memory, Asked(messages=(user("something else"),)))
    assert (other.fork, other.parent_id, other.reused) == ("client", "", 0)


def test_an_answer_that_the_client_rewrote_is_its_fork_of_the_step_that_gave_it():
    memory = Memory()
    _answered(RENDERER, memory, Asked(messages=(user("a"),)), "b", "first")
    rewritten = bridge(RENDERER, memory, Asked(messages=(user("a"), assistant("b, and more"), user("c"))))
    assert (rewritten.fork, rewritten.parent_id) == ("client", "first")
    assert "b, and more" in rewritten.text


def test_other_tools_are_the_clients_fork_not_drift():
    memory = Memory()
    hermes = tiny_renderer("hermes")
    _answered(hermes, memory, Asked(messages=(user("a"),), tools=(Tool(name="f"),)), "b", "first")
    bridged = bridge(hermes, memory, Asked(messages=(user("a"), assistant("b"), user("c")), tools=(Tool(name="g"),)))
    assert (bridged.fork, bridged.parent_id) == ("client", "first")


def test_an_echo_with_rewritten_arguments_and_ids_is_restored_to_what_was_sampled():
    hermes = tiny_renderer("hermes")
    tools = (Tool(name="search"),)
    raw = 'Look.\n\n<tool_call>\n{"name":"search",  "arguments":{"a": 1, "b": "x"}}\n</tool_call>'
    memory = Memory()
    _, step = _answered(hermes, memory, Asked(messages=(user("q"),), tools=tools), raw)
    assert [call.name for call in step.answer.tool_calls] == ["search"]
    call = ToolCall(id="renamed", name="search", arguments='{"b":"x","a":1}')
    echo = Message(role="assistant", content="Look.", tool_calls=(call,))
    result = Message(role="tool", content="found", tool_call_id="renamed")
    bridged = bridge(hermes, memory, Asked(messages=(user("q"), echo, result), tools=tools))
    assert (bridged.fork, bridged.reused) == ("", len(step.ids))
    assert raw in bridged.text


def test_equal_answers_of_different_turns_each_keep_their_own_tokens():
    memory = Memory()
    first = (user("1"),)
    _answered(RENDERER, memory, Asked(messages=first), _pieces("hello"), "first")
    second = (*first, assistant("hello"), user("2"))
    _answered(RENDERER, memory, Asked(messages=second), "hello", "second")
    third = bridge(RENDERER, memory, Asked(messages=(*second, assistant("hello"), user("3"))))
    assert (third.parent_id, third.fork) == ("second", "")


def test_an_answer_like_one_that_came_from_elsewhere_does_not_rewrite_the_context_in_which_it_was_given():
    hermes = tiny_renderer("hermes")
    tools = (Tool(name="search"),)
    call = ToolCall(id="1", name="search", arguments='{"a":1}')
    echo = Message(role="assistant", content="Look.", tool_calls=(call,))
    result = Message(role="tool", content="found", tool_call_id="1")
    asked = (user("q"), echo, result, user("and now?"))  # nothing of it was said here
    memory = Memory()
    raw = 'Look. <tool_call>\n{"name": "search", "arguments": {"a": 1}}\n</tool_call>'
    _, step = _answered(hermes, memory, Asked(messages=asked, tools=tools), raw, "first")
    bridged = bridge(hermes, memory, Asked(messages=(*asked, echo, result), tools=tools))
    assert (bridged.fork, bridged.parent_id, bridged.reused) == ("", "first", len(step.ids))
    assert bridged.text.startswith(step.text)


def test_a_template_that_only_trims_the_answer_does_not_break_the_ids():
    trimming = tiny_renderer(template=TRIMMING)
    memory = Memory()
    _, step = _answered(trimming, memory, Asked(messages=(user("q"),)), "  an answer \n", "first")
    bridged = bridge(trimming, memory, Asked(messages=(user("q"), assistant("an answer"), user("next"))))
    assert (bridged.fork, bridged.parent_id, bridged.reused) == ("", "first", len(step.ids))
    assert bridged.text.startswith(step.text)


def test_a_template_that_drops_old_reasoning_gives_the_new_context_and_says_that_it_did():
    thinking = tiny_renderer(template=THINKING)
    memory = Memory()
    _answered(thinking, memory, Asked(messages=(user("q"),)), "<think>hm</think>yes", "first")
    messages = (user("q"), Message(role="assistant", content="yes", reasoning="hm"), user("next"))
    bridged = bridge(thinking, memory, Asked(messages=messages))
    assert (bridged.fork, bridged.parent_id, bridged.reused) == ("template", "first", 0)
    assert "hm" not in bridged.text
    assert thinking.decode(bridged.prompt_ids, skip_special=False) == bridged.text


@pytest.mark.parametrize("echoed", ["hm", ""])
def test_reasoning_that_the_client_drops_is_put_back_where_the_template_would_keep_it(echoed):
    keeping = tiny_renderer(template=CHATML + "{# </think> #}")
    memory = Memory()
    _, step = _answered(keeping, memory, Asked(messages=(user("q"),)), "<think>hm</think>yes", "first")
    assert (step.answer.reasoning, step.answer.content) == ("hm", "yes")
    echo = Message(role="assistant", content="yes", reasoning=echoed)
    bridged = bridge(keeping, memory, Asked(messages=(user("q"), echo, user("next"))))
    assert (bridged.fork, bridged.reused) == ("", len(step.ids))


def test_reasoning_that_the_client_leaves_out_on_purpose_stays_out_and_the_rest_keeps_its_tokens():
    keeping = tiny_renderer(template=CHATML + "{# </think> #}")
    memory, options = Memory(), {"reasoning_as_sent": True}
    _, first = _answered(keeping, memory, Asked(messages=(user("q"),)), "<think>hm</think>yes", "first")
    whole = (user("q"), first.answer, user("next"))
    bridged, second = _answered(keeping, memory, Asked(messages=whole, options=options), _pieces("hello"), "second")
    assert (bridged.fork, bridged.reused) == ("", len(first.ids))
    silent = (user("q"), assistant("yes"), user("next"), assistant("hello"), user("last"))
    bridged = bridge(keeping, memory, Asked(messages=silent, options=options))
    assert (bridged.fork, bridged.parent_id, bridged.reused) == ("client", "second", 0)
    assert bridged.text == keeping.text(silent)
    sampled = second.ids[second.answer_ids :].tolist()
    assert str(sampled)[1:-1] in str(bridged.prompt_ids.tolist())
    assert "hm" in bridge(keeping, memory, Asked(messages=silent)).text


def test_a_message_that_a_client_throws_away_after_each_call_is_its_fork():
    memory = Memory()
    throwaway = user("<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>> now is 12:00")
    _answered(RENDERER, memory, Asked(messages=(user("q"), throwaway)), "a", "first")
    bridged = bridge(RENDERER, memory, Asked(messages=(user("q"), assistant("a"), user("next"), throwaway)))
    assert (bridged.fork, bridged.parent_id) == ("client", "first")


def test_the_ids_of_an_old_step_are_forgotten_but_not_its_words():
    memory = Memory(recent=1)
    messages: tuple[Message, ...] = ()
    for number in range(3):
        messages = (*messages, user(str(number)))
        _answered(RENDERER, memory, Asked(messages=messages), _pieces("hello"), str(number))
        messages = (*messages, assistant("hello"))
    bridged = bridge(RENDERER, memory, Asked(messages=(*messages, user("last"))))
    assert (bridged.parent_id, bridged.fork) == ("2", "")


def test_plain_prompts_are_continued_by_text_and_by_ids():
    memory = Memory()
    assert bridge_text(RENDERER, memory, "hello").fork == "root"
    prompt = bridge_text(RENDERER, memory, "hello")
    ids = np.array(_pieces(" there"), np.int32)
    memory.add(seen(RENDERER, "first", Asked(messages=()), prompt, ids, assistant(" there")))
    by_text = bridge_text(RENDERER, memory, "hello there, you")
    assert (by_text.parent_id, by_text.reused) == ("first", len(prompt.prompt_ids) + len(ids))
    by_ids = bridge_ids(RENDERER, memory, by_text.prompt_ids)
    assert (by_ids.parent_id, by_ids.reused, by_ids.fork) == ("first", by_text.reused, "")
    assert bridge_ids(RENDERER, memory, RENDERER.encode("other")).fork == "client"


def test_a_conversation_does_not_go_on_from_a_plain_prompt():
    memory = Memory()
    prompt = bridge_text(RENDERER, memory, "hello")
    memory.add(seen(RENDERER, "plain", Asked(messages=()), prompt, RENDERER.encode(" there"), assistant(" there")))
    bridged = bridge(RENDERER, memory, Asked(messages=(user("a"), assistant("b"), user("c"))))
    assert (bridged.fork, bridged.parent_id) == ("client", "")


def _turns(renderer: Renderer, memory: Memory, answers: Sequence[Sequence[int]]) -> tuple[list[Message], list[Seen]]:
    """A conversation in which the engine gave these answers."""
    messages: list[Message] = []
    steps = []
    for number, answer in enumerate(answers):
        messages.append(user(f"question {number}"))
        steps.append(_answered(renderer, memory, Asked(messages=tuple(messages)), answer, str(number))[1])
        messages.append(assistant(steps[-1].answer.content))
    return messages, steps


def _holds(ids: np.ndarray, part: np.ndarray) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(part))
    return bool((windows == part).all(axis=1).any())


def test_an_edit_of_an_answer_is_the_clients_fork_of_that_step_and_keeps_the_tokens_of_the_others():
    memory = Memory()
    messages, steps = _turns(RENDERER, memory, [_pieces("hello"), _pieces("hell"), _pieces("hello ab")])
    messages[3] = assistant("edited")
    bridged = bridge(RENDERER, memory, Asked(messages=(*messages, user("last"))))
    assert (bridged.fork, bridged.parent_id) == ("client", "1")
    for number in (0, 2):
        sampled = steps[number].ids[steps[number].answer_ids : -1]
        assert _holds(bridged.prompt_ids, sampled)
    assert RENDERER.decode(bridged.prompt_ids, skip_special=False) == bridged.text


def test_an_older_step_that_could_be_extended_does_not_hide_that_the_newest_could_not():
    thinking = tiny_renderer(template=THINKING)
    memory = Memory()
    messages = (user("q"),)
    _answered(thinking, memory, Asked(messages=messages), "plain", "first")
    messages = (*messages, assistant("plain"), user("next"))
    _answered(thinking, memory, Asked(messages=messages), "<think>hm</think>yes", "second")
    messages = (*messages, assistant("yes"), user("last"))
    bridged = bridge(thinking, memory, Asked(messages=messages))
    assert (bridged.fork, bridged.parent_id) == ("template", "second")


def test_tools_that_come_and_go_are_the_clients_forks_and_no_sampled_token_is_lost():
    hermes = tiny_renderer("hermes")
    memory = Memory()
    messages: tuple[Message, ...] = ()
    sampled: list[np.ndarray] = []
    for turn in range(4):
        messages = (*messages, user(str(turn)))
        asked = Asked(messages=messages, tools=() if turn % 2 else (Tool(name="f"),))
        bridged, step = _answered(hermes, memory, asked, _pieces("hello"), str(turn))
        assert (bridged.fork, bridged.parent_id) == (("client", str(turn - 1)) if turn else ("root", ""))
        assert all(_holds(bridged.prompt_ids, ids) for ids in sampled)
        sampled.append(step.ids[step.answer_ids : -1])
        messages = (*messages, assistant("hello"))


def test_each_of_many_siblings_is_continued_with_its_own_ids():
    memory = Memory()
    siblings = [
        _answered(RENDERER, memory, Asked(messages=(user("q"),)), _pieces("ab" * (number + 1)), str(number))[1]
        for number in range(20)
    ]
    for number, step in enumerate(siblings):
        bridged = bridge(RENDERER, memory, Asked(messages=(user("q"), step.answer, user("next"))))
        assert (bridged.parent_id, bridged.reused, bridged.fork) == (str(number), len(step.ids), "")


def test_what_is_kept_of_a_trajectory_is_weighed_and_bounded_in_steps():
    memory = Memory(recent=2)
    _turns(RENDERER, memory, [_pieces("hello")] * 3)
    assert [step.step_id for step in memory.recent] == ["1", "2"]
    assert memory.size >= sum(step.size for step in memory.recent)
