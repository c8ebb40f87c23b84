"""`stepwell train` with RTPO on an agent that nobody changed: trunks, siblings at each turn, updates between them."""

import sys
import textwrap
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from stepwell.cli.parts import POOL_FILE
from stepwell.pool.store import SQLitePool
from stepwell.types import Trajectory
from tests.cli.processes import Finished

AGENT = textwrap.dedent(
    """
    import json, os, sys, urllib.request

    def asked(url, model, messages):
        body = {"model": model, "messages": messages, "max_tokens": 4}
        request = urllib.request.Request(url + "/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["choices"][0]["message"]["content"]

    def solve(url, model, task):
        messages, said = [], []
        for turn in range(2):
            messages.append({"role": "user", "content": f"{task} {turn}"})
            said.append(asked(url, model, messages))
            messages.append({"role": "assistant", "content": said[-1]})
        return sum("a" in text for text in said) / len(said)

    def function(call):
        return solve(call.url, call.model, call.task.prompt)

    if __name__ == "__main__":
        print(solve(os.environ["OPENAI_BASE_URL"], os.environ["STEPWELL_MODEL"], sys.argv[1]))
    """
)
UPDATES, GROUPS, SIBLINGS = 4, 2, 3


@pytest.fixture
def settings(tmp_path: Path) -> list[str]:
    """A recipe that ships, with another environment and another algorithm: of these words everything follows."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "judge.py").write_text("def reward(done):\n    return {'a': float(done.output)}\n")
    (tmp_path / "tasks.jsonl").write_text("".join(f'{{"prompt": "find {letter}"}}\n' for letter in "bcdefgh"))
    return [
        *("train", "lookup", "environment.use=black_box", f"environment.tasks={tmp_path}/tasks.jsonl"),
        *("algorithm.use=rtpo", "warmup.updates=0", f"trainer.groups_per_update={GROUPS}"),
        *(f"rollout.group_size={SIBLINGS}", f"trainer.updates={UPDATES}", "--folder", str(tmp_path / "run")),
    ]


def test_each_turn_is_taken_anew_by_siblings_the_last_one_first_with_an_update_published_between(
    command: Callable[..., Finished], settings: list[str], tmp_path: Path
) -> None:
    program = f"{sys.executable} {tmp_path}/agent.py {{task}}"
    done = command(*settings, f"environment.command={program}", f"environment.reward={tmp_path}/judge.py:reward")
    assert done.code == 0, done.err
    with closing(SQLitePool.open(tmp_path / "run" / POOL_FILE, read_only=True)) as pool:
        updates = pool.updates("lookup")
        lines = sorted((line.info for _, line in pool.groups("lookup")), key=lambda info: info.created_at)
        groups = [info for info in lines if info.origin_id]
        stored = [pool.trajectory(line.info.id) for _, line in pool.trajectories(limit=1000)]
    assert [update.policy_version for update in updates] == list(range(1, UPDATES + 1))
    assert all(dict(update.metrics)["trained_steps"] > 0 for update in updates)

    assert [info.origin_index for info in groups] == [1, 1, 0, 0] * (len(groups) // 4)
    by_id = {trajectory.info.id: trajectory for trajectory in stored}
    siblings: dict[str, list[Trajectory]] = {}
    for trajectory in stored:
        siblings.setdefault(trajectory.info.group_id or "", []).append(trajectory)
    for place, info in enumerate(groups):
        taken = by_id[info.origin_id].steps[info.origin_index or 0]
        assert len(siblings[info.id]) == SIBLINGS
        for sibling in siblings[info.id]:
            first = sibling.steps[0]
            assert first.index == info.origin_index
            assert first.prompt_ids.tolist() == taken.prompt_ids.tolist()
            assert {step.policy_version_min for step in sibling.steps} == {place // GROUPS}
            assert {step.policy_version_max for step in sibling.steps} == {place // GROUPS}
            assert sibling.complete
    # the first beside nothing; those after them beside the last turn of those before, so one version earlier
    trunks = {info.origin_id: max(place // 4 * 2 - 1, 0) for place, info in enumerate(groups)}
    for name, version in trunks.items():
        assert {step.policy_version_min for step in by_id[name].steps} == {version}


@pytest.mark.slow
def test_a_policy_learns_what_an_agent_that_nobody_changed_is_rewarded_for(
    command: Callable[..., Finished], settings: list[str], tmp_path: Path
) -> None:
    agent = (f"environment.function={tmp_path}/agent.py:function", "environment.reward=result")
    more = ("trainer.updates=12", "trainer.groups_per_update=4", "rollout.group_size=6", "learner.lr=3e-3")
    done = command(*settings, *agent, *more)
    assert done.code == 0, done.err
    with closing(SQLitePool.open(tmp_path / "run" / POOL_FILE, read_only=True)) as pool:
        rewards = [dict(update.metrics)["reward_mean"] for update in pool.updates("lookup")]
    assert rewards[0] < 0.5
    assert rewards[-1] > 0.9
