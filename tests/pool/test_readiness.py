import math

from hypothesis import given
from hypothesis import strategies as st

from stepwell.pool.readiness import Completion, completed_at, fold, handed_over
from stepwell.types import Annotation, Trajectory, TrajectoryInfo
from tests.pool.builders import make_step
from tests.strategies import rewards

INFO = TrajectoryInfo(id="t")
STEPS = [make_step("t", index, id=f"s{index}") for index in range(3)]


def note(target: str, name: str, value: float) -> Annotation:
    kind = "trajectory" if target == "t" else "step"
    return Annotation.reward(kind, target, value, name)


notes = st.builds(note, st.sampled_from(["t", "s0", "s1", "s2"]), st.sampled_from(["a", "b", "c"]), rewards)
distinct = st.lists(notes, max_size=12, unique_by=lambda found: (found.target_id, found.name))


@given(st.data(), distinct)
def test_facts_of_different_names_may_arrive_in_any_order(data: st.DataObject, facts: list[Annotation]) -> None:
    shuffled = data.draw(st.permutations(facts))
    assert fold(INFO, STEPS, shuffled) == fold(INFO, STEPS, facts)


@given(st.permutations(STEPS), distinct)
def test_steps_may_be_given_in_any_order(steps: list, facts: list[Annotation]) -> None:
    assert fold(INFO, steps, facts) == fold(INFO, STEPS, facts)


@given(st.lists(notes, max_size=12))
def test_only_the_newest_of_each_target_and_name_counts(history: list[Annotation]) -> None:
    newest = {(fact.target_id, fact.name): fact for fact in history}
    assert fold(INFO, STEPS, history) == fold(INFO, STEPS, list(newest.values()))


@given(st.lists(notes, min_size=1, max_size=12))
def test_the_reward_is_the_sum_of_its_parts_and_of_its_steps(history: list[Annotation]) -> None:
    folded = fold(INFO, STEPS, history)
    assert folded.reward is not None
    assert math.isclose(folded.reward, sum(value for _, value in folded.reward_parts), rel_tol=1e-9, abs_tol=1e-6)
    assert math.isclose(folded.reward, sum(folded.step_rewards), rel_tol=1e-9, abs_tol=1e-6)


def test_a_reward_of_the_whole_is_not_counted_at_a_step_beside_the_work() -> None:
    steps = [make_step("t", 0), make_step("t", 1, side="state")]
    trajectory = fold(INFO, steps, [Annotation.reward("trajectory", INFO.id, 2.0)])
    assert trajectory.step_rewards == (2.0, 0.0)


def test_a_reward_of_the_whole_is_counted_at_the_last_step() -> None:
    folded = fold(INFO, STEPS, [note("t", "a", 1.0), note("s0", "a", 0.25), note("s2", "b", 2.0)])
    assert folded.step_rewards == (0.25, 0.0, 3.0)
    assert folded.reward_parts == (("a", 1.25), ("b", 2.0))


def test_without_rewards_the_reward_is_unknown_and_not_zero() -> None:
    assert fold(INFO, STEPS, []).reward is None
    assert fold(INFO, STEPS, [note("t", "a", 0.0)]).reward == 0.0


def test_the_reward_of_a_trajectory_without_steps_is_known() -> None:
    folded = fold(INFO, [], [note("t", "a", 0.5)])
    assert (folded.reward, folded.step_rewards) == (0.5, ())


def test_feedback_and_events_are_told_in_order_and_change_nothing_else() -> None:
    thumbs = Annotation(target="step", target_id="s1", kind="feedback", name="thumbs", value=1.0)
    turn = Annotation(target="trajectory", target_id="t", kind="event", name="user_turn")
    folded = fold(INFO, STEPS, [turn, note("s1", "a", 0.5), thumbs, Annotation.end("t", "terminated"), thumbs])
    assert folded.annotations == (turn, thumbs, thumbs)
    assert (folded.reward, folded.status) == (0.5, "terminated")


def test_a_trajectory_is_complete_when_it_has_ended_unfailed_and_rewarded() -> None:
    end, reward = Annotation.end("t", "terminated"), note("s1", "a", 0.0)
    assert [fold(INFO, STEPS, facts).complete for facts in ([], [end], [reward], [end, reward], [reward, end])] == [
        False,
        False,
        False,
        True,
        True,
    ]
    assert not fold(INFO, STEPS, [Annotation.end("t", "failed"), reward]).complete


@given(
    st.sampled_from(["open", "terminated", "truncated", "failed"]),
    st.none() | st.integers(1, 99),
    st.none() | st.integers(1, 99),
)
def test_completion_is_dated_by_the_later_of_end_and_reward(status, ended: int | None, rewarded: int | None) -> None:
    at = completed_at(status, ended, rewarded)
    whole = Trajectory(info=INFO, steps=(), status=status, reward=None if rewarded is None else 1.0)
    assert (at is not None) == (whole.complete and ended is not None)
    assert at is None or at == max(ended, rewarded)


completions = st.lists(
    st.builds(Completion, trajectory=st.integers(1, 99), cursor=st.integers(1, 99), policy_version_min=st.none()),
    max_size=9,
    unique_by=lambda done: done.cursor,
)


@given(st.integers(1, 5), completions)
def test_a_group_is_ready_with_size_completions_and_hands_over_the_first(size: int, done: list[Completion]) -> None:
    members = handed_over(size, done)
    assert (members is not None) == (len(done) >= size)
    if members is not None:
        assert [member.cursor for member in members] == sorted(found.cursor for found in done)[:size]


@given(st.integers(1, 5), completions)
def test_later_completions_never_change_what_is_handed_over(size: int, done: list[Completion]) -> None:
    in_order = sorted(done, key=lambda found: found.cursor)
    seen = [handed_over(size, in_order[:count]) for count in range(len(in_order) + 1)]
    assert all(members in (None, seen[-1]) for members in seen)
