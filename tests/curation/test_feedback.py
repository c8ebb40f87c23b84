"""What feedback is worth."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.curation.feedback import FeedbackRule
from stepwell.types import Annotation

NUMBERS = st.floats(-1e6, 1e6)


def said(name: str, value: float | None = None) -> Annotation:
    return Annotation(target="trajectory", target_id="t", kind="feedback", name=name, value=value)


@pytest.mark.parametrize(
    ("note", "worth"),
    [
        (said("thumbs", 1), 1.0),
        (said("thumbs", -1), -1.0),
        (said("score", 0.3), 0.3),
        (said("edit"), None),
        (said("comment"), None),
        (said("thumbs"), None),
        (said("else", 1), None),
    ],
)
def test_without_settings_thumbs_and_scores_are_worth_what_they_say(note: Annotation, worth: float | None) -> None:
    assert FeedbackRule().reward(note) == worth


@given(
    st.tuples(NUMBERS, NUMBERS).filter(lambda pair: pair[0] < pair[1]), st.tuples(NUMBERS, NUMBERS), NUMBERS, NUMBERS
)
def test_a_scale_is_mapped_to_the_range_of_rewards_and_its_ends_to_the_ends(
    scale: tuple[float, float], rewards: tuple[float, float], one: float, other: float
) -> None:
    rule = FeedbackRule(score_range=scale, reward_range=rewards)
    worth = [rule.reward(said("score", score)) for score in (*scale, one, other)]
    assert worth[:2] == list(rewards)
    assert all(min(rewards) <= value <= max(rewards) or value == pytest.approx(min(rewards)) for value in worth)
    if one <= other and rewards[0] < rewards[1]:
        assert worth[2] <= worth[3] or worth[2] == pytest.approx(worth[3])
