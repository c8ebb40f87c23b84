"""Hypothesis strategies for the records, valid by construction and as odd as the types allow."""

from typing import get_args

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stepwell.types import Annotation, Fork, GroupInfo, Sampling, Side, Step, TrajectoryInfo, UpdateInfo

names = st.text(st.characters(exclude_characters="/\0\n", exclude_categories=["Cs"]), min_size=1, max_size=12)
"""Names that a record accepts, in any script."""
stored_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
"""Text of a database column: no NUL, no lone surrogate."""
any_text = st.text(st.characters(), max_size=60) | st.text(st.characters(categories=["Cs"]), max_size=4)
"""Text with anything in it, lone surrogates included."""
times = st.floats(0, 1e11)
rewards = st.floats(-1e6, 1e6)
token_ids = hnp.arrays(np.int32, st.integers(0, 12), elements=st.integers(0, 2**31 - 1))
"""int32 [0..12]."""
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 100),
    top_p=st.floats(0, 1, exclude_min=True),
    top_k=st.integers(0, 2**31),
    max_tokens=st.integers(1, 2**31),
    seed=st.none() | st.integers(0, 2**63 - 1),
    constrained=st.booleans(),
)
group_infos = st.builds(
    GroupInfo,
    id=names,
    task_id=stored_text,
    channel=names,
    size=st.integers(1, 64),
    deadline=st.none() | times,
    created_at=times,
)
updates = st.builds(
    UpdateInfo,
    id=names,
    run=names,
    policy_version=st.integers(0, 2**40),
    metrics=st.lists(st.tuples(names, st.floats(allow_nan=False)), max_size=4).map(tuple),
    created_at=times,
)


def trajectory_infos(group_id: str | None = None) -> st.SearchStrategy[TrajectoryInfo]:
    """Trajectories of the group `group_id`, or of none."""
    texts = {"task_id": stored_text, "agent": stored_text, "source": stored_text}
    return st.builds(TrajectoryInfo, id=names, group_id=st.just(group_id), created_at=times, **texts)


@st.composite
def steps(draw: st.DrawFn, trajectory_id: str, index: int, start: tuple[int, ...] = ()) -> Step:
    """A step of the trajectory whose prompt starts with `start`."""
    response = draw(token_ids)
    logprobs = hnp.arrays(np.float32, len(response), elements=st.floats(-(2.0**100), 0, width=32))
    version = draw(st.integers(0, 1000))
    prompt = np.concatenate((np.array(start or (1,), np.int32), draw(token_ids)))
    return Step(
        id=draw(names),
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=prompt,
        response_ids=response,
        logprobs=draw(logprobs),
        policy_version_min=version,
        policy_version_max=version + draw(st.integers(0, 3)),
        finish_reason=draw(st.sampled_from(["stop", "length", "abort"])),
        token_source=draw(st.sampled_from(["engine", "text"])),
        sampling=draw(samplings),
        model=draw(stored_text),
        parent_id=draw(stored_text),
        fork=draw(st.sampled_from(get_args(Fork))),
        side=draw(st.sampled_from(get_args(Side))),
        prefill=draw(st.integers(0, len(prompt) - 1)),
        dialect=draw(stored_text),
        request=draw(any_text),
        response=draw(any_text),
        created_at=draw(times),
        latency=draw(st.floats(0, 1e6)),
    )


@st.composite
def conversations(draw: st.DrawFn, trajectory_id: str, most: int = 4) -> list[Step]:
    """Steps of one trajectory, unique ids, most prompts extending the step before and some starting afresh."""
    taken: list[Step] = []
    for index in range(draw(st.integers(0, most))):
        keep = taken and draw(st.booleans())
        start = (*taken[-1].prompt_ids, *taken[-1].response_ids) if keep else ()
        step = draw(steps(trajectory_id, index, start).filter(lambda new: all(new.id != old.id for old in taken)))
        taken.append(step)
    return taken


def reward_annotations(target: str, target_id: str) -> st.SearchStrategy[Annotation]:
    """Rewards of a step or trajectory, under few names so that newer ones replace older ones."""
    return st.builds(
        Annotation,
        target=st.just(target),
        target_id=st.just(target_id),
        kind=st.just("reward"),
        name=st.sampled_from(["answer", "format", "judge"]),
        value=rewards,
        text=stored_text,
        created_at=times,
    )
