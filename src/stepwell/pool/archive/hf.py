"""A folder for Hugging Face `datasets`: Parquet shards and a dataset card, without needing that package.

`datasets.load_dataset(folder)` reads it, and so does the Hub if it is uploaded as it is.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
import yaml

from stepwell.errors import InvalidRecord
from stepwell.pool.archive import parquet
from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.table import Row, schema_of

_R = TypeVar("_R", bound=Row)
_SHARD_BYTES: Final = 512 * 2**20
_SHARDS: Final = "data/*.parquet"


def write(
    path: Path,
    row: type[Row],
    rows: Iterable[Row],
    progress: Callable[[int], None],
    shard_bytes: int = _SHARD_BYTES,
) -> tuple[int, list[Path]]:
    """All rows into shards of about `shard_bytes`; `progress` hears the count of rows. Gives rows and files."""
    (path / "data").mkdir(parents=True)
    files: list[Path] = []
    count = 0
    with ExitStack() as stack:
        shard = _shard(stack, path, row, files)
        for count, one in enumerate(rows, 1):
            if shard.add(one):
                progress(count)
                if shard.size >= shard_bytes:
                    stack.pop_all().close()
                    shard = _shard(stack, path, row, files)
    card = path / "README.md"
    card.write_text(_card(row, count, sum(file.stat().st_size for file in files)), encoding="utf-8")
    return count, [*files, card]


def _shard(stack: ExitStack, path: Path, row: type[Row], files: list[Path]) -> parquet.ParquetFile:
    files.append(path / "data" / f"train-{len(files):05d}.parquet")
    return stack.enter_context(parquet.ParquetFile(files[-1], row))


def read(path: Path, row: type[_R], flaws: Flaws, first: str) -> Iterator[tuple[Path, int, _R]]:
    """(shard, row number in it from 1, row), shard by shard.

    Raises:
        InvalidRecord: there are no shards, or one is no Parquet file.
    """
    shards = sorted(path.glob(_SHARDS))
    if not shards:
        raise InvalidRecord(f"{path} holds no {_SHARDS}, so it is no dataset that was written here")
    for shard in shards:
        for number, one in parquet.read(shard, row, flaws, first):
            yield shard, number, one


def _card(row: type[Row], count: int, size: int) -> str:
    features = [_feature(field.name, field.type) for field in schema_of(row)]
    split = {"name": "train", "num_examples": count}
    about = {
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": _SHARDS}]}],
        "dataset_info": {"features": features, "splits": [split], "download_size": size},
        "tags": ["stepwell"],
    }
    text = (row.__doc__ or "").strip().partition("\n")[0]
    return f"---\n{yaml.safe_dump(about, sort_keys=False)}---\n\n# Agent interaction data\n\n{text}\n"


def _feature(name: str, kind: pa.DataType) -> dict[str, object]:
    return {"name": name, **_described(kind)}


def _described(kind: pa.DataType) -> dict[str, object]:
    """A type as a dataset card writes it."""
    if pa.types.is_list(kind):
        inner = _described(kind.value_type)
        return {"list": inner["dtype"] if "dtype" in inner else inner["struct"]}
    if pa.types.is_struct(kind):
        return {"struct": [_feature(field.name, field.type) for field in kind]}
    return {"dtype": {"double": "float64", "float": "float32"}.get(str(kind), str(kind))}
