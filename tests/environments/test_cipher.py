"""The cipher: what is right, what it pays, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.environments.cipher import Cipher, CipherConfig
from stepwell.errors import InvalidRequest, NotFound
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Outcome
from tests.environments.laws import opened, play, say


def answered(tasks: Cipher, right: list[bool], task: str = "train-0") -> list[Outcome]:
    """An episode with right answers, and wrong ones, in the turns that say so."""
    words = [tasks.secret(word) if good else "zzzz" for word, good in zip(tasks.words(task), right, strict=True)]
    return play(tasks, task, [say(word) for word in words])


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.integers(0, 12))
def test_each_right_answer_pays_once_after_its_delay_or_at_the_end(right: list[bool], delay: int) -> None:
    outcomes = answered(CipherConfig(turns=len(right), delay=delay).build(), right)
    due = [0.0] * len(right)
    for turn, good in enumerate(right):
        due[min(turn + delay, len(right) - 1)] += good / len(right)
    assert [outcome.reward for outcome in outcomes] == pytest.approx(due)
    assert [outcome.terminated for outcome in outcomes] == [False] * (len(right) - 1) + [True]


@pytest.mark.parametrize(("right", "paid"), [([True] * 3, 1.0), ([True, False, True], 0.0)])
def test_all_pays_only_if_all_was_right(right: list[bool], paid: float) -> None:
    outcomes = answered(CipherConfig(turns=3, pays="all", delay=0).build(), right)
    assert [outcome.reward for outcome in outcomes] == [0.0, 0.0, paid]


def test_the_agent_reads_the_turn_what_was_right_and_the_word() -> None:
    tasks = CipherConfig(turns=3).build()
    words = tasks.words("test-5")
    assert opened(tasks, "test-5") == (Message(role="user", content=f"turn 1 of 3, 0 right: {words[0]}"),)
    told = [outcome.messages[0].content for outcome in answered(tasks, [True, False, True], "test-5")[:2]]
    assert told == [f"turn 2 of 3, 1 right: {words[1]}", f"turn 3 of 3, 1 right: {words[2]}"]


def test_right_is_one_substitution_of_the_alphabet_which_the_seed_decides() -> None:
    first, second = (CipherConfig(alphabet=26, cipher_seed=seed).build() for seed in (0, 1))
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    assert sorted(first.secret(alphabet)) == list(alphabet)
    assert first.secret("abab") == 2 * first.secret("ab")
    assert first.secret(alphabet) != second.secret(alphabet)


def test_words_have_the_letters_that_settings_say_and_differ_between_tasks() -> None:
    tasks = CipherConfig(turns=5, letters=6, alphabet=3).build()
    words = tasks.words("train-1")
    assert ([len(word) for word in words], set("".join(words)) <= set("abc")) == ([6] * 5, True)
    assert words != tasks.words("test-1")


def test_tasks_that_do_not_exist_are_refused() -> None:
    tasks = CipherConfig().build()
    with pytest.raises(InvalidRequest, match="train or test"):
        tasks.tasks("dev")
    with pytest.raises(NotFound, match="train-N"):
        tasks.make().reset("train-x")
    with pytest.raises(InvalidRequest, match="reset"):
        tasks.make().step(say("a"))
