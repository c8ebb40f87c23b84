"""Finding steps by words: an index beside the log, which follows it only when somebody searches.

So it costs nothing to those who never do. It is a cache: it is made by the first search, follows the log from where it
stopped, and may be dropped. A step is indexed with what it adds: the part of its request that its base did not have,
and its answer.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa
import zstandard

from stepwell.pool.schema import steps

_CHUNK: Final = 2_000
"""Steps that are indexed in one transaction, so that others who write wait no longer than for those."""
_WORD: Final = re.compile(r"\w+")
_table = sa.table("step_texts", sa.column("rowid"), sa.column("cursor"), sa.column("text"))


@dataclass(frozen=True, slots=True)
class _Index:
    """How a database keeps words."""

    create: str
    newest: str
    insert: str
    matches: Callable[[str], sa.Select[Any]]
    """Cursors of the steps that have all these words."""


def _on_sqlite(words: str) -> sa.Select[Any]:
    quoted = " ".join(f'"{word}"' for word in _WORD.findall(words))
    return sa.select(_table.c.rowid).where(sa.literal_column("step_texts").op("MATCH")(quoted))


def _on_postgresql(words: str) -> sa.Select[Any]:
    return sa.select(_table.c.cursor).where(
        _table.c.text.op("@@")(sa.func.plainto_tsquery(sa.literal_column("'simple'"), " ".join(_WORD.findall(words))))
    )


_INDEXES: Final = {
    "sqlite": _Index(
        create="CREATE VIRTUAL TABLE IF NOT EXISTS step_texts USING fts5(text, content='', detail=none)",
        newest="SELECT max(rowid) FROM step_texts",
        insert="INSERT INTO step_texts (rowid, text) VALUES (:cursor, :text)",
        matches=_on_sqlite,
    ),
    "postgresql": _Index(
        create=(
            "CREATE TABLE IF NOT EXISTS step_texts (cursor bigint PRIMARY KEY, text tsvector NOT NULL); "
            "CREATE INDEX IF NOT EXISTS ix_step_texts ON step_texts USING gin (text)"
        ),
        newest="SELECT max(cursor) FROM step_texts",
        insert="INSERT INTO step_texts (cursor, text) VALUES (:cursor, to_tsvector('simple', :text))",
        matches=_on_postgresql,
    ),
}


def exists(connection: sa.Connection) -> bool:
    """Whether anybody has searched this pool yet."""
    return sa.inspect(connection).has_table(_table.name)


def follow(connection: sa.Connection) -> bool:
    """Index some steps that are not yet; gives whether there are more. Within a write transaction."""
    index = _INDEXES[connection.dialect.name]
    connection.execute(sa.text(index.create))
    newest = connection.scalar(sa.text(index.newest)) or 0
    columns = (steps.c.cursor, steps.c.texts)
    statement = sa.select(*columns).where(steps.c.cursor > newest).order_by(steps.c.cursor).limit(_CHUNK)
    decompress = zstandard.ZstdDecompressor().decompress
    rows = [
        {"cursor": cursor, "text": _words(decompress(texts) if texts else b"")}
        for cursor, texts in connection.execute(statement)
    ]
    if rows:
        connection.execute(sa.text(index.insert), rows)
    return len(rows) == _CHUNK


def matching(dialect: str, words: str) -> sa.Select[Any]:
    """Cursors of the trajectories of which some step has all of `words`, whatever their case; all, if there is none."""
    owners = sa.select(steps.c.trajectory_cursor)
    if not _WORD.search(words):
        return owners
    return owners.where(steps.c.cursor.in_(_INDEXES[dialect].matches(words)))


def _words(data: bytes) -> str:
    """JSON escapes and NUL are no words."""
    text = data.decode("utf-8", "replace").replace("\0", " ")
    return re.sub(r"\\[nrtbf\"/\\]", " ", text)
