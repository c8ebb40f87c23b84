from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.bridge import answer_key, bridge, restore, seen
from stepwell.rendering.messages import Message, ToolCall
from tests.fakes.models import tiny_renderer

RENDERER = tiny_renderer()
TEXTS = st.text(st.sampled_from("hello ab\n€é"), max_size=12)


def _pieces(text: str) -> list[int]:
    """A tokenisation that the tokenizer itself would not choose: character by character."""
    return [int(i) for character in text for i in RENDERER.encode(character)]


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5))
def test_every_prompt_of_a_conversation_begins_with_the_step_before_and_reads_as_the_conversation(turns):
    messages: list[Message] = []
    earlier = []
    for question, answer in turns:
        messages.append(Message(role="user", content=question))
        text = RENDERER.text(messages)
        bridged = bridge(RENDERER, earlier, text)
        assert RENDERER.decode(bridged.prompt_ids, skip_special=False) == text
        if earlier:
            assert bridged.reused == len(earlier[-1].ids)
            assert bridged.prompt_ids[: bridged.reused].tolist() == earlier[-1].ids.tolist()
        response = [*_pieces(answer), *RENDERER.eos_ids]
        earlier.append(seen(RENDERER, bridged.prompt_ids, response))
        messages.append(Message(role="assistant", content=answer))


def test_the_first_prompt_and_a_changed_history_are_rendered_whole_and_say_why():
    first = bridge(RENDERER, [], "hello")
    assert (first.prompt_ids.tolist(), first.reused) == (RENDERER.encode("hello").tolist(), 0)
    assert first.fork == "there is no earlier step"
    changed = bridge(RENDERER, [seen(RENDERER, RENDERER.encode("abc"), RENDERER.encode("d"))], "abXd")
    assert changed.prompt_ids.tolist() == RENDERER.encode("abXd").tolist()
    assert "by character 2" in changed.fork


def test_the_longest_earlier_step_is_extended():
    short = seen(RENDERER, RENDERER.encode("a"), RENDERER.encode("b"))
    long = seen(RENDERER, RENDERER.encode("a"), RENDERER.encode("bc"))
    assert bridge(RENDERER, [long, short], "abcd").reused == 3
    assert bridge(RENDERER, [long, short], "abd").reused == 2


def test_an_echo_with_rewritten_arguments_and_ids_is_restored_to_what_was_sampled():
    call = ToolCall(id="1", name="search", arguments='{"a": 1, "b": "x"}')
    echo = ToolCall(id="call1", name="search", arguments='{"b":"x","a":1}')
    sampled = {answer_key(Message(role="assistant", content="Look.\n", tool_calls=(call,))): "as sampled"}
    messages = [Message(role="user", content="q"), Message(role="assistant", content="Look.", tool_calls=(echo,))]
    assert restore(messages, sampled) == [messages[0], Message(role="assistant", content="as sampled")]


def test_an_answer_that_was_never_sampled_is_left_alone():
    messages = [Message(role="assistant", content="few-shot"), Message(role="user", content="few-shot")]
    assert restore(messages, {answer_key(Message(role="assistant", content="other")): "x"}) == messages
