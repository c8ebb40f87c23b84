"""`stepwell pool`: what people decide, what is written and read as files, and keeping a pool well."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from stepwell.pool import schema
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import GroupInfo, TrajectoryInfo
from tests.cli.processes import Finished, stepwell
from tests.pool.builders import complete_trajectory, ready_group

Run = Callable[..., Finished]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pool.sqlite"
    pool = SQLitePool.open(path)
    pool.put(*ready_group("g", size=2), *complete_trajectory("low", None, reward=0.0))
    pool.put(GroupInfo(id="open", task_id="x", size=3), TrajectoryInfo(id="lone", group_id="open"))
    pool.close()
    return path


@pytest.fixture
def run(command: Run, path: Path) -> Run:
    def call(*arguments: str) -> Finished:
        return command("pool", *arguments, "--pool", str(path))

    return call


def good(done: Finished) -> str:
    assert done.code == 0, done.err
    return done.out


def pool_of(path: Path) -> SQLitePool:
    return SQLitePool.open(path)


def listed(run: Run, *where: str) -> list[str]:
    lines = json.loads(good(run("ls", "--json", *(part for one in where for part in ("--where", one)))))
    return [line["info"]["id"] for line in lines]


def test_a_verdict_from_the_command_line_changes_the_next_lease(run: Run, path: Path) -> None:
    good(run("verdict", "g-0", "reject", "--why", "made up"))
    pool = pool_of(path)
    assert pool.lease(LeaseSpec(consumer="c")).groups == ()
    assert pool.notes("g-0")[-1].text == "made up"
    pool.close()
    assert "rejected: 1" in good(run("consumers"))
    good(run("verdict", "g-0", "clear"))
    pool = pool_of(path)
    assert len(pool.lease(LeaseSpec(consumer="c")).groups) == 1
    pool.close()


def test_tags_and_notes_are_given_to_steps_and_trajectories(run: Run, path: Path) -> None:
    pool = pool_of(path)
    step_id = pool.trajectory("g-1").steps[0].id
    pool.close()
    good(run("tag", "low", "odd"))
    good(run("tag", step_id, "good"))
    good(run("note", step_id, "look here", "--about", "review"))
    assert listed(run, "tags=[good]") == ["g-1"]
    assert listed(run, "tags=[odd]") == ["low"]
    good(run("tag", "low", "odd", "--remove"))
    assert listed(run, "tags=[odd]") == []


def test_what_is_not_there_or_makes_no_sense_is_an_error_in_words(run: Run) -> None:
    for arguments, says in (
        (("verdict", "nowhere", "reject"), "no trajectory 'nowhere'"),
        (("ls", "--where", "min_rewrd=1"), "min_reward"),
        (("ls", "--selection", "nowhere"), "no selection 'nowhere'"),
        (("dataset", "freeze", "d", "--where", "min_reward=9"), "nothing"),
        (("export", "x.parquet", "--view", "nonsense"), "--view"),
    ):
        done = run(*arguments)
        assert done.code == 1
        assert says in done.err


def test_a_selection_is_saved_shown_used_and_forgotten(run: Run) -> None:
    good(run("select", "good", "--where", "min_reward=0.5"))
    assert json.loads(good(run("select", "good"))) == {"min_reward": 0.5}
    assert good(run("select")).split() == ["good"]
    chosen = json.loads(good(run("ls", "--json", "--selection", "good", "--where", "group_ids=[g]")))
    assert [line["info"]["id"] for line in chosen] == ["g-1", "g-0"]
    good(run("select", "good", "--delete"))
    assert good(run("select")) == ""


def test_datasets_are_frozen_listed_and_compared(run: Run) -> None:
    good(run("dataset", "freeze", "d", "--unit", "trajectory", "--where", "min_reward=0.5"))
    good(run("dataset", "freeze", "d", "--unit", "trajectory"))
    assert re.findall(r"d@\d", good(run("dataset", "ls"))) == ["d@2", "d@1"]
    assert good(run("dataset", "diff", "d@1", "d@2")).split("\n") == ["+ low", ""]


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "out"])
def test_an_export_imported_elsewhere_is_the_same_pool_and_once_more_changes_nothing(
    run: Run, command: Run, tmp_path: Path, path: Path, name: str
) -> None:
    good(run("verdict", "g-0", "accept"))
    assert "4 rows" in good(run("export", str(tmp_path / name)))
    other = tmp_path / "other.sqlite"
    for stored in (True, False):
        done = good(command("pool", "import", str(tmp_path / name), "--pool", str(other)))
        assert ("0 records stored" not in done) == stored
        assert "0 refused" in done
    first, second = pool_of(path), pool_of(other)
    for trajectory in first.scan():
        assert second.trajectory(trajectory.info.id) == trajectory
        assert second.notes(trajectory.info.id) == first.notes(trajectory.info.id)
    first.close()
    second.close()


def test_a_selection_is_exported_as_conversations(run: Run, tmp_path: Path) -> None:
    assert "0 rows" in good(run("export", str(tmp_path / "sft.jsonl"), "--view", "sft", "--where", "min_reward=9"))


def test_groups_are_listed_with_what_they_lack(run: Run) -> None:
    shown = good(run("groups"))
    assert re.search(r"open .*open .*0 of 3 .*2", shown)
    assert re.search(r"g .*ready .*2 of 2", shown)


def test_a_wrong_derived_column_is_found_and_mended(run: Run, path: Path) -> None:
    assert "0 faults" in good(run("verify"))
    with sa.create_engine(f"sqlite:///{path}").begin() as connection:
        connection.execute(sa.update(schema.trajectories).values(steps=9))
    assert run("verify").code == 1
    assert "(mended)" in good(run("verify", "--repair"))
    assert "0 faults" in good(run("verify"))


def test_pruning_says_what_would_go_and_does_it_only_if_told(run: Run) -> None:
    arguments = ("prune", "--all-selected", "--where", "max_reward=0.5")
    assert "1 trajectories, 1 steps" in good(run(*arguments))
    assert "low" in listed(run)
    assert "forgotten" in good(run(*arguments, "--yes"))
    assert "low" not in listed(run)


def test_a_backup_is_a_pool(run: Run, command: Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    good(run("backup", str(copy)))
    assert "0 faults" in good(command("pool", "verify", "--pool", str(copy)))
    assert run("backup", str(copy)).code == 1


def test_the_tail_prints_what_was_and_what_is_appended_until_it_is_interrupted(path: Path) -> None:
    with stepwell("pool", "tail", "--after", "0", "--pool", str(path)) as tail:
        first = json.loads(tail.wait_for('"cursor": 1'))
        assert (first["kind"], first["id"]) == ("GroupInfo", "g")
        pool = pool_of(path)
        pool.put(TrajectoryInfo(id="later"))
        pool.close()
        assert json.loads(tail.wait_for("later"))["kind"] == "TrajectoryInfo"
        tail.interrupt()
    assert not any("Traceback" in line for line in tail.printed)


@pytest.mark.parametrize("words", [("ls",), ("verdict", "t", "reject"), ("dataset", "freeze", "d"), ("select", "s")])
def test_a_mistyped_pool_is_an_error_and_not_a_new_one(command: Run, tmp_path: Path, words: tuple[str, ...]) -> None:
    mistyped = tmp_path / "nope.sqlite"
    done = command("pool", *words, "--pool", str(mistyped))
    assert (done.code, "no pool at" in done.err) == (1, True)
    assert list(tmp_path.iterdir()) == []
