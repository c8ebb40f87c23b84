"""The picture of a group's prefix tree: its figures are those of the packing, its bars tile what the rows share."""

import re

import numpy as np

from stepwell.dashboard.tree import Bar, GroupTree, read_tree, tree_html
from stepwell.pool.store import SQLitePool
from stepwell.prefix_tree.savings import Savings
from stepwell.types import GroupInfo, Step, TrajectoryInfo


def step(trajectory_id: str, index: int, prompt: list[int], response: list[int], **more) -> Step:
    logprobs = np.full(len(response), -1.0)
    made = {"trajectory_id": trajectory_id, "index": index, "prompt_ids": prompt, "response_ids": response}
    return Step(**made, logprobs=logprobs, **more)


def siblings(pool: SQLitePool) -> None:
    """Two trajectories of one prompt; the first goes on once, and has a step that nobody trains on."""
    pool.put(GroupInfo(id="g", task_id="t", size=2), *(TrajectoryInfo(id=name, group_id="g") for name in "ab"))
    first, second = [5, 5], [6, 6, 6]
    pool.put(
        step("a", 0, [1, 2, 3, 4], first),
        step("a", 1, [1, 2, 3, 4, *first, 9], [8]),
        step("a", 2, [7] * 50, [7], side="title"),
        step("b", 0, [1, 2, 3, 4], second),
    )


def test_the_tree_of_a_trajectory_is_that_of_the_trainable_steps_of_its_group(tmp_path) -> None:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    siblings(pool)
    tree = read_tree(pool, pool.trajectory("b"))
    pool.close()
    assert tree == GroupTree(
        trajectories=2,
        saved=Savings(rows=3, flat_tokens=6 + 8 + 7, tokens=4 + 3 + 4),
        bars=(Bar(0, 4, 3, 0, 2), Bar(4, 3, 1, 0, 1), Bar(4, 4, 2, 1, 1)),
    )


def test_a_trajectory_without_a_group_is_its_own(tmp_path) -> None:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(TrajectoryInfo(id="lone"), step("lone", 0, [1, 2], [3]), step("lone", 1, [1, 2, 3, 4], [5]))
    tree = read_tree(pool, pool.trajectory("lone"))
    pool.close()
    assert (tree.trajectories, tree.bars) == (1, (Bar(0, 5, 2, 0, 1),))


def test_bars_lie_at_their_depth_are_as_wide_as_their_tokens_and_say_how_many_rows_go_through(tmp_path) -> None:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    siblings(pool)
    shown = tree_html(read_tree(pool, pool.trajectory("a")))
    pool.close()
    places = re.findall(r"left: ([\d.]+)%; width: ([\d.]+)%; top: (\d+)px; height: (\d+)px", shown)
    assert [tuple(map(float, place)) for place in places] == [(0, 50, 0, 36), (50, 37.5, 0, 18), (50, 50, 18, 18)]
    assert re.findall(r'title="(.*?)"', shown) == [
        "4 tokens from position 0, in 3 of 3 rows",
        "3 tokens from position 4, in 1 of 3 rows",
        "4 tokens from position 4, in 2 of 3 rows",
    ]


def test_a_group_with_nothing_to_train_on_has_no_picture(tmp_path) -> None:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    pool.put(TrajectoryInfo(id="empty"))
    tree = read_tree(pool, pool.trajectory("empty"))
    pool.close()
    assert (tree.saved, tree_html(tree)) == (Savings(0, 0, 0), "")
