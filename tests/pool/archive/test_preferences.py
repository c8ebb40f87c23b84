import json
from pathlib import Path

from stepwell.pool import archive
from stepwell.pool.archive import Entry, Item, Preferences
from stepwell.types import Annotation
from tests.pool.archive.builders import group_of, searching


def _pairs(tmp_path: Path, items: list[Item], view: Preferences) -> tuple[list[dict], archive.Written]:
    path = tmp_path / "pairs.jsonl"
    written = archive.write(path, items, view=view)
    return [json.loads(line) for line in path.read_text().splitlines()], written


def test_the_best_trajectory_of_a_group_is_preferred_to_the_worst(tmp_path: Path) -> None:
    members = [searching(f"t{n}", reward, "g", f"answer {n}") for n, reward in enumerate([0.5, 1.0, 0.0])]
    (pair,), _ = _pairs(tmp_path, [group_of(*members)], Preferences())
    assert [message["role"] for message in pair["prompt"]] == ["user", "assistant", "tool"]
    assert pair["chosen"] == [{"role": "assistant", "content": "answer 1"}]
    assert pair["rejected"] == [{"role": "assistant", "content": "answer 2"}]
    assert (pair["chosen_id"], pair["rejected_id"], pair["group_id"]) == ("t1", "t2", "g")
    assert (pair["chosen_reward"], pair["rejected_reward"], pair["origin"]) == (1.0, 0.0, "reward")
    assert pair["tools"][0]["function"]["name"] == "search"


def test_rewards_within_the_margin_make_no_pair(tmp_path: Path) -> None:
    group = group_of(searching("a", 1.0, "g", "x"), searching("b", 0.5, "g", "y"))
    pairs, written = _pairs(tmp_path, [group], Preferences(margin=0.5))
    assert pairs == []
    assert written.skipped == (("rewards within the margin", 1),)


def test_equal_conversations_and_lonely_rewards_make_no_pair(tmp_path: Path) -> None:
    same = group_of(searching("a", 1.0, "g"), searching("b", 0.0, "g"))
    lonely = group_of(searching("c", 1.0, "h"), searching("d", None, "h"), group_id="h")
    _, written = _pairs(tmp_path, [same, lonely], Preferences())
    assert written.skipped == (
        ("answers that part nowhere, or not at an answer", 1),
        ("group with less than two rewards", 1),
    )


def _edit(target: str, target_id: str, text: str) -> Annotation:
    return Annotation(id=f"e{len(text)}", target=target, target_id=target_id, kind="feedback", name="edit", text=text)


def test_the_newest_edit_of_an_answer_is_preferred_to_it(tmp_path: Path) -> None:
    notes = (_edit("step", "t-1", "first"), _edit("step", "t-1", "A better one."))
    entry = Entry(trajectory=searching("t"), notes=notes)
    (pair,), _ = _pairs(tmp_path, [entry], Preferences())
    assert pair["chosen"] == [{"role": "assistant", "content": "A better one."}]
    assert pair["rejected"] == [{"role": "assistant", "content": "Yes"}]
    assert (pair["origin"], pair["chosen_id"], pair["rejected_id"]) == ("edit", "e13", "t-1")


def test_an_edit_of_a_trajectory_is_one_of_its_last_answer(tmp_path: Path) -> None:
    entry = Entry(trajectory=searching("t"), notes=(_edit("trajectory", "t", "Better."),))
    (pair,), _ = _pairs(tmp_path, [entry], Preferences())
    assert pair["rejected_id"] == "t-1"


def test_edits_in_groups_count_too_and_either_origin_can_be_left_out(tmp_path: Path) -> None:
    group = group_of(searching("a", 1.0, "g", "x"), searching("b", 0.0, "g", "y"))
    entries = [
        Entry(group=group.info, trajectory=member, notes=(_edit("trajectory", member.info.id, "Better."),))
        for member in group.trajectories
    ]
    origins = []
    for chosen in [{"reward"}, {"edit"}, {"reward", "edit"}]:
        folder = tmp_path / "-".join(sorted(chosen))
        folder.mkdir()
        pairs, _ = _pairs(folder, entries, Preferences(origins=frozenset(chosen)))
        origins.append([pair["origin"] for pair in pairs])
    assert origins == [["reward"], ["edit", "edit"], ["reward", "edit", "edit"]]
