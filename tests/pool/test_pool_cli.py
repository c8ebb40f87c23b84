import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepwell.cli.pool import app, assistant_text
from stepwell.errors import NotFound
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.pool.builders import complete_trajectory, make_step


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "pool.sqlite"
    pool = SQLitePool.open(path)
    message = {"role": "assistant", "content": "Seven [bold] \ud83d", "tool_calls": None}
    pool.put(
        GroupInfo(id="g1", task_id="add", size=1), TrajectoryInfo(id="t1", group_id="g1", agent="curl", task_id="add")
    )
    pool.put(make_step("t1", id="s1", version=3, response=json.dumps(message)))
    pool.put(Annotation.reward("step", "s1", 0.5, "answer"), Annotation.end("t1", "terminated"))
    pool.put(*complete_trajectory("t2", None))
    pool.close()
    return path


def run(path: Path, *arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--pool", str(path)], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def test_ls_lists_the_newest_first(path: Path) -> None:
    lines = json.loads(run(path, "ls", "--json"))
    assert [(line["info"]["id"], line["reward"], line["status"]) for line in lines] == [
        ("t2", 1.0, "terminated"),
        ("t1", 0.5, "terminated"),
    ]
    older = json.loads(run(path, "ls", "--json", "--before", str(lines[0]["cursor"])))
    assert [line["info"]["id"] for line in older] == ["t1"]
    table = run(path, "ls", "--limit", "1")
    assert "t2" in table
    assert "t1" not in table


def test_show_finds_out_what_the_id_is_of(path: Path) -> None:
    assert json.loads(run(path, "show", "t1", "--json"))["status"] == "terminated"
    assert json.loads(run(path, "show", "g1", "--json"))["info"]["size"] == 1
    assert json.loads(run(path, "show", "s1", "--json"))["response_ids"] == [7, 8]


def test_show_prints_what_people_said_and_what_happened(path: Path) -> None:
    assert "thumbs" not in run(path, "show", "t1")
    pool = SQLitePool.open(path)
    pool.put(Annotation(target="step", target_id="s1", kind="feedback", name="thumbs", value=-1, text="[b]too long"))
    pool.put(Annotation(target="trajectory", target_id="t1", kind="event", name="user_turn", text="Bye."))
    pool.close()
    table = run(path, "show", "t1")
    rows = [[cell.strip() for cell in line.strip("│ ").split("│")] for line in table.splitlines() if "│" in line]
    assert ["0", "feedback", "thumbs", "-1", "[b]too long"] in rows
    assert ["event", "user_turn", "-", "Bye."] in rows
    assert [note["name"] for note in json.loads(run(path, "show", "t1", "--json"))["annotations"]] == [
        "thumbs",
        "user_turn",
    ]


def test_show_prints_a_trajectory_step_by_step_with_what_the_assistant_said_unchanged(path: Path) -> None:
    table = run(path, "show", "t1")
    assert "t1: terminated, reward 0.5" in table
    assert "reward parts: answer 0.5" in table
    row = next(line for line in table.splitlines() if "Seven" in line)
    assert [cell.strip() for cell in row.strip("│ ").split("│")] == [
        "0",
        "3",
        "stop",
        "2",
        "2",
        "0.5",
        "Seven [bold] ?",
    ]


def test_show_prints_groups_and_steps(path: Path) -> None:
    assert "g1: task add, 1 of 1 complete" in run(path, "show", "g1")
    assert "-0.7500 nats" in run(path, "show", "s1")


def test_stats_counts(path: Path) -> None:
    counts = json.loads(run(path, "stats", "--json"))
    assert (counts["steps"], counts["groups_ready"], counts["policy_version"]) == (2, 1, 3)
    assert "trajectories terminated" in run(path, "stats")


def test_the_pool_may_be_named_by_the_environment(path: Path) -> None:
    result = CliRunner().invoke(app, ["stats", "--json"], env={"STEPWELL_POOL": str(path)})
    assert json.loads(result.output)["steps"] == 2


def test_what_is_missing_is_raised_for_main_to_print(path: Path, tmp_path: Path) -> None:
    for arguments in (["show", "nowhere", "--pool", str(path)], ["ls", "--pool", str(tmp_path / "none.sqlite")]):
        with pytest.raises(NotFound):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ("", ""),
        ("not JSON", "not JSON"),
        ("[1]", "[1]"),
        ('{"content": null}', ""),
        (
            '{"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}',
            'a\n{"type": "image"}\nb',
        ),
        ('{"content": "Hm.", "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}', "Hm.\n→ add({})"),
        ('{"tool_calls": ["odd"]}', '"odd"'),
    ],
)
def test_the_assistant_text_is_found_in_any_shape_of_message(response: str, text: str) -> None:
    assert assistant_text(make_step("t", response=response)) == text
