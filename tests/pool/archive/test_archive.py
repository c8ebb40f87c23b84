"""Laws of export and import: what is written comes back exactly, as a whole or not at all."""

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings

from stepwell.errors import Conflict, InvalidRecord, InvalidRequest
from stepwell.pool import archive
from stepwell.pool.archive import Entry, hf, parquet
from stepwell.pool.archive.views import rl
from stepwell.types import Annotation, GroupInfo, Sampling, Step, Trajectory, TrajectoryInfo
from tests.pool.archive.builders import archives, group_of, records_of, searching

EXACT = [name for name, kind in archive.FORMATS.items() if kind.write]


def _same_bits(left: Step, right: Step) -> bool:
    pairs = [(left.prompt_ids, right.prompt_ids), (left.response_ids, right.response_ids)]
    return all(a.tobytes() == b.tobytes() for a, b in [*pairs, (left.logprobs, right.logprobs)])


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(archived=archives())
def test_every_record_comes_back_bit_for_bit(name: str, archived: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "archive"
        archive.write(path, archived, format=name)
        found = list(archive.read(path, format=name))
    expected = records_of(archived)
    assert found == expected
    pairs = zip(found, expected, strict=True)
    assert all(_same_bits(a, b) for a, b in pairs if isinstance(a, Step) and isinstance(b, Step))


@pytest.mark.parametrize("suffix", ["", ".parquet", ".jsonl"])
def test_the_format_is_told_by_the_path_and_guessed_again(tmp_path: Path, suffix: str) -> None:
    trajectory = dataclasses.replace(searching("t", reward=None), status="open")
    path = tmp_path / f"steps{suffix}"
    written = archive.write(path, [trajectory])
    assert written.rows == 2
    assert written.bytes == sum(file.stat().st_size for file in written.files)
    assert [type(record) for record in archive.read(path)] == [TrajectoryInfo, Step, Step]


def test_every_field_of_the_records_has_a_column() -> None:
    names = {
        GroupInfo: rl.GROUP,
        TrajectoryInfo: rl.TRAJECTORY,
        Step: {**rl.STEP, "sampling": ""},
        Sampling: rl.SAMPLING,
        Annotation: {**rl.NOTE, "target_id": ""},
    }
    assert [k for k, columns in names.items() if {f.name for f in dataclasses.fields(k)} != set(columns)] == []


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("error", [KeyboardInterrupt, InvalidRecord])
def test_an_interrupted_export_leaves_nothing(tmp_path: Path, name: str, error: type[BaseException]) -> None:
    def interrupted() -> Iterator[Trajectory]:
        yield searching("t")
        raise error

    with pytest.raises(error):
        archive.write(tmp_path / "steps", interrupted(), format=name, view=archive.Conversations())
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_text("mine")
    with pytest.raises(Conflict, match="exists already"):
        archive.write(tmp_path / "steps.jsonl", [])
    assert (tmp_path / "steps.jsonl").read_text() == "mine"


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no folder .*nowhere"):
        archive.write(tmp_path / "nowhere" / "steps.jsonl", [])


@pytest.mark.parametrize("name", ["otel", "csv"])
def test_a_format_that_cannot_be_written_is_answered_with_those_that_can(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="choose one of parquet, jsonl, hf"):
        archive.write(tmp_path / "steps", [], format=name)


@pytest.mark.parametrize("content", ["", "hello", '{"a": 1}', "[1]"])
def test_what_is_no_archive_is_not_guessed(tmp_path: Path, content: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(InvalidRequest, match="cannot tell the format"):
        archive.read(tmp_path / "file")


def test_what_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no"):
        archive.read(tmp_path / "file")


def test_a_rewarded_trajectory_without_its_reward_annotations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRecord, match="t comes without the annotations that its end and reward came from"):
        archive.write(tmp_path / "steps.jsonl", [searching("t")])


def test_an_annotation_of_a_step_of_another_trajectory_is_refused(tmp_path: Path) -> None:
    open_one = dataclasses.replace(searching("t", reward=None), status="open")
    entry = Entry(trajectory=open_one, notes=(Annotation.reward("step", "elsewhere", 1.0),))
    with pytest.raises(InvalidRecord, match="elsewhere"):
        archive.write(tmp_path / "steps.jsonl", [entry])


def test_a_set_that_is_no_group_of_the_pool_leaves_no_group_behind(tmp_path: Path) -> None:
    single = dataclasses.replace(searching("t", reward=None), status="open")
    archive.write(tmp_path / "steps.jsonl", [group_of(single, group_id="t")])
    assert [type(record) for record in archive.read(tmp_path / "steps.jsonl")] == [TrajectoryInfo, Step, Step]


def test_a_malformed_line_is_fatal_or_skipped_and_counted_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    archive.write(path, [dataclasses.replace(searching(f"t{n}", reward=None), status="open") for n in range(2)])
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:40]
    lines[2] = lines[2].replace('"step_index":0', '"step_index":-1')
    path.write_text("\n".join(lines))
    with pytest.raises(InvalidRecord, match=r"steps.jsonl, line 2: .*on_error='skip'"):
        list(archive.read(path))
    reading = archive.read(path, on_error="skip")
    assert [record.id for record in reading] == ["t0", "t0-0", "t1", "t1-1"]
    assert reading.flaws.count == 2
    assert [flaw.line for flaw in reading.flaws.first] == [2, 3]
    assert "index must be in 0" in str(reading.flaws.first[1])


@pytest.mark.parametrize("damage", [b"", b"PAR1 nothing", None])
def test_a_parquet_file_that_is_cut_short_is_named(tmp_path: Path, damage: bytes | None) -> None:
    path = tmp_path / "steps.parquet"
    archive.write(path, [], view=archive.Exact())
    path.write_bytes(path.read_bytes()[:-20] if damage is None else damage)
    with pytest.raises(InvalidRecord, match=r"steps\.parquet cannot be read as Parquet"):
        list(archive.read(path, on_error="skip"))


def test_a_parquet_file_of_something_else_is_named(tmp_path: Path) -> None:
    archive.write(tmp_path / "sft.parquet", [searching("t")], view=archive.Conversations())
    with pytest.raises(InvalidRecord, match="no export of steps"):
        list(archive.read(tmp_path / "sft.parquet"))


def test_columns_that_another_program_widened_are_read_all_the_same(tmp_path: Path) -> None:
    trajectory = dataclasses.replace(searching("t", reward=None), status="open")
    archive.write(tmp_path / "steps.parquet", [trajectory])
    table = pq.read_table(tmp_path / "steps.parquet").drop_columns(["latency"])
    columns = {name: table[name] for name in table.column_names}
    columns["prompt_ids"] = pa.array(table["prompt_ids"].to_pylist(), pa.list_(pa.int64()))
    columns["model"] = table["model"].cast(pa.large_string())
    pq.write_table(pa.table(columns), tmp_path / "copy.parquet")
    found = [record for record in archive.read(tmp_path / "copy.parquet") if isinstance(record, Step)]
    assert [step.model for step in found] == ["m", "m"]
    assert [step.prompt_ids.tolist() for step in found] == [[1], [1, 2, 3]]
    assert [step.latency for step in found] == [0.0, 0.0]


def test_memory_holds_one_row_group_and_progress_is_told_after_each(tmp_path: Path) -> None:
    heard: list[int] = []
    many = (Entry(group=GroupInfo(id=f"g{n}", task_id="t", size=1)) for n in range(parquet._GROUP_ROWS * 2 + 1))
    written = archive.write(tmp_path / "groups.parquet", many, progress=heard.append)
    assert heard == [parquet._GROUP_ROWS, parquet._GROUP_ROWS * 2]
    assert pq.ParquetFile(tmp_path / "groups.parquet").num_row_groups == 3
    assert len(list(archive.read(tmp_path / "groups.parquet"))) == written.rows


def test_large_rows_make_small_row_groups(tmp_path: Path) -> None:
    step = searching("t").steps[0]
    ids = np.arange(parquet._GROUP_BYTES // 8, dtype=np.int32)
    rows = (rl.StepRow(step_id=step.id, prompt_ids=ids) for _ in range(5))
    parquet.write(tmp_path / "file", rl.StepRow, rows, lambda count: None)
    assert pq.ParquetFile(tmp_path / "file").num_row_groups == 3


def test_a_folder_is_cut_into_shards_that_are_read_in_order(tmp_path: Path) -> None:
    rows = [rl.StepRow(group_id=f"g{n:05d}", group_size=1, group_task_id="t") for n in range(parquet._GROUP_ROWS * 2)]
    count, files = hf.write(tmp_path / "set", rl.StepRow, rows, lambda count: None, shard_bytes=1)
    assert count == len(rows)
    assert [file.name for file in files] == [*(f"train-{n:05d}.parquet" for n in range(3)), "README.md"]
    assert [record.id for record in archive.read(tmp_path / "set")] == [row.group_id for row in rows]


def test_hugging_face_datasets_loads_the_folder_with_the_features_of_its_card(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    opened = dataclasses.replace(searching("t", reward=None), status="open")
    archive.write(tmp_path / "set", [opened])
    loaded = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"), split="train")
    assert loaded.num_rows == 2
    assert loaded[1]["prompt_ids"] == [1, 2, 3]
    card = datasets.Features._from_yaml_list(_card(tmp_path / "set")["dataset_info"]["features"])
    assert loaded.features == card


def _card(folder: Path) -> dict:
    return yaml.safe_load((folder / "README.md").read_text().split("---")[1])
