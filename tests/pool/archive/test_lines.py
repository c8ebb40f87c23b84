import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from stepwell.pool.archive.lines import main_line
from stepwell.types import Step
from tests import strategies


def _step(index: int, prompt: list[int], **more) -> Step:
    given = {"id": f"s{index}", "trajectory_id": "t", "response_ids": [9], "logprobs": [0.0]}
    return Step(**given, index=index, prompt_ids=prompt, **more)


def _ids(steps: list[Step]) -> list[str]:
    return [step.id for step in main_line(steps)]


def test_steps_that_go_on_from_each_other_are_one_line_whether_or_not_their_parents_were_noted() -> None:
    noted = [_step(0, [1], fork="root"), _step(1, [1, 9, 2], parent_id="s0"), _step(2, [1, 9, 2, 9, 3], parent_id="s1")]
    unnoted = [dataclasses.replace(step, parent_id="", fork="") for step in noted]
    assert _ids(noted) == _ids(unnoted) == ["s0", "s1", "s2"]


def test_drift_does_not_break_a_line_but_another_history_of_the_client_does() -> None:
    begun = _step(0, [1], fork="root")
    drifted = _step(1, [5], parent_id="s0", fork="template")
    assert _ids([begun, drifted]) == ["s0", "s1"]
    assert _ids([begun, drifted, _step(2, [6], parent_id="s1", fork="client")]) == ["s0", "s1"]


def test_side_calls_are_in_no_line() -> None:
    title = _step(1, [1, 9, 2], side="title", parent_id="s0")
    assert _ids([_step(0, [1]), title]) == ["s0"]
    assert _ids([title]) == []


def test_of_equally_long_lines_the_last_is_taken() -> None:
    assert _ids([_step(0, [1]), _step(1, [2])]) == ["s1"]


@given(steps=st.data())
def test_a_line_is_made_of_the_trajectorys_own_steps_in_order(steps: st.DataObject) -> None:
    drawn = steps.draw(strategies.conversations("t"))
    line = main_line(drawn)
    assert [step.index for step in line] == sorted({step.index for step in line})
    assert all(not step.side and step in drawn for step in line)
    assert bool(line) == any(not step.side for step in drawn)
