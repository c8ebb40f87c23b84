from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.rendering.pieces import ReasoningPiece, TextPiece, message_of
from stepwell.rendering.source import PieceParser
from stepwell.rendering.thinking import Thinking, find_thinking
from tests.rendering.replies import is_beginning, joined, read

THINK = Thinking("<think>", "</think>")
TEXTS = st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "\n", " ", "a", "<"]), max_size=10).map("".join)


def _parser(inside: bool = False) -> PieceParser:
    return PieceParser(partial(THINK.read, inside=inside))


@given(text=TEXTS, inside=st.booleans())
def test_the_split_does_not_depend_on_the_cuts_and_is_never_taken_back(text, inside):
    whole = joined(read(_parser(inside), [text]))
    parser, early = _parser(inside), []
    for character in text:
        early += parser.feed(character)
        assert is_beginning(joined(early), whole)
    assert joined([*early, *parser.finish()]) == whole


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        ("\n<think>Hm", "Hm", ""),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("I <think> so</think>", "", "I <think> so</think>"),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        (" <thin", "", " <thin"),
        ("", "", ""),
    ],
)
def test_reasoning_is_what_stands_between_the_marks_at_the_beginning(text, reasoning, content):
    answer = message_of(read(_parser(), [text]))
    assert (answer.reasoning, answer.content) == (reasoning, content)


def test_reasoning_that_the_prompt_began_goes_on_and_streams():
    parser = _parser(inside=True)
    assert [parser.feed(part) for part in ("\n", "Hm", " so", ".\n", "</thi", "nk>", "\n", "Yes")] == [
        [],
        [ReasoningPiece("Hm")],
        [ReasoningPiece(" so")],
        [ReasoningPiece(".")],
        [],
        [],
        [],
        [TextPiece("Yes")],
    ]


def test_whether_the_prompt_began_it_is_seen_at_its_end():
    assert THINK.is_open("<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not THINK.is_open("")


@pytest.mark.parametrize(
    ("template", "tokens", "expected"),
    [
        ("{{ messages }}", ["<|im_end|>"], None),
        ("… '</think>' in content …", [], THINK),
        ("{{ messages }}", ["<think>", "</think>"], THINK),
        ("{{ messages }}", ["[THINK]", "[/THINK]"], Thinking("[THINK]", "[/THINK]")),
    ],
)
def test_only_models_that_know_the_marks_reason(template, tokens, expected):
    assert find_thinking(template, tokens) == expected
