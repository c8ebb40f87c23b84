"""What docs say of files and wires is what the code writes."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepwell.pool import archive
from stepwell.pool.archive.table import schema_of
from stepwell.pool.archive.views import rl
from stepwell.pool.arrays import ARRAYS, IDS, StepArrays, step_arrays, to_msgpack
from stepwell.pool.arrow import to_arrow
from stepwell.pool.store import open_pool
from stepwell.types import Annotation, GroupInfo, TrajectoryInfo
from tests.pool.archive.builders import group_of, searching

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "reference" / "archive.md").read_text(encoding="utf-8")
WIRE = (DOCS / "reference" / "wire.md").read_text(encoding="utf-8")


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return "list<struct>" if pa.types.is_struct(kind.value_type) else f"list<{kind.value_type}>"
    return str(kind)


@pytest.mark.parametrize(
    ("part", "row"),
    [
        ("## View `rl`", rl.StepRow),
        ("Each of `annotations`", rl.Note),
        ("## View `sft`", archive.VIEWS["sft"]().row),
        ("## View `preferences`", archive.VIEWS["preferences"]().row),
    ],
)
def test_each_column_is_documented_with_its_type_and_nothing_else_is(part: str, row: type) -> None:
    section = re.split(r"\n## |\nEach of ", PAGE.partition(part)[2])[0]
    documented = re.findall(r"^\| `(\w+)` \| `([\w<>]+)` \| \S", section, re.MULTILINE)
    assert documented == [(field.name, _kind(field.type)) for field in schema_of(row)]


def test_each_format_and_view_is_documented() -> None:
    assert [name for name in archive.FORMATS if f"| `{name}` |" not in PAGE] == []
    assert [name for name in archive.VIEWS if f"## View `{name}`" not in PAGE] == []


def test_each_array_is_documented_with_its_dtype_and_shape() -> None:
    documented = re.findall(r"^\| `(\w+)` \| `([<\w]+)` \| \[([\w+]+)\] \| \S", WIRE, re.MULTILINE)
    arrays = [(name, dtype.strip("|"), shape) for name, (dtype, shape) in ARRAYS.items()]
    assert documented == [*arrays, *((name, "text", shape) for name, shape in IDS.items())]


def _blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


@pytest.mark.parametrize(("block", "encode"), [(0, to_msgpack), (1, to_arrow)])
def test_the_documented_way_to_read_without_stepwell_works(block: int, encode: object) -> None:
    arrays: StepArrays = step_arrays([group_of(searching("t"))])
    names = {"data": encode(arrays)}
    exec(_blocks(WIRE)[block], names)
    assert {name: names["arrays"][name].tolist() for name in ARRAYS} == {
        name: getattr(arrays, name).tolist() for name in ARRAYS
    }


def test_the_how_to_exports_and_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "latest").mkdir(parents=True)
    pool = open_pool("runs/latest/pool.sqlite")
    pool.put(TrajectoryInfo(id="rivers-0"), *searching("rivers-0").steps)
    for group_id, rewards in [("rivers-1", [0.0, 1.0]), ("rivers-2", [0.5, 0.4])]:
        pool.put(GroupInfo(id=group_id, task_id="rivers", size=2))
        for number, reward in enumerate(rewards):
            name = f"{group_id}-{number}"
            pool.put(TrajectoryInfo(id=name, group_id=group_id), *searching(name, end=name).steps)
            pool.put(Annotation.reward("trajectory", name, reward))
    pool.close()
    (code,) = _blocks((DOCS / "howto" / "export_and_import.md").read_text(encoding="utf-8"))
    exec(code, {})
    assert capsys.readouterr().out.splitlines() == [
        "2 rows; left out: {'reward below the threshold': 2}",
        "parquet with 0 lines skipped:",
    ]
    assert [pq.read_table(file).num_rows for file in Path("rivers-pairs").glob("data/*.parquet")] == [1]
