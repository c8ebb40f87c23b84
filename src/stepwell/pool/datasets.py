"""Datasets: what a selection wanted at one moment, frozen under a name and a version, with where it came from.

A dataset is a list of units and of their trajectories, each with a digest of its content: so two versions can be
compared, and a later reward shows. Its own digest is made of those, sorted, and of nothing that depends on the pool:
the same content has the same digest everywhere.
"""

import hashlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import Any, Final

import msgspec
import numpy as np
import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest
from stepwell.pool import queries
from stepwell.pool.candidates import Candidate, everything
from stepwell.pool.frozen import DatasetDiff, DatasetInfo, Manifest
from stepwell.pool.lease import LeaseSpec, Unit
from stepwell.pool.queries import select_in
from stepwell.pool.readiness import Facts
from stepwell.pool.schema import annotations, dataset_units, datasets, steps, trajectories
from stepwell.pool.sifting import sift
from stepwell.types import Group, new_id

_CHUNK: Final = 64
_DIGEST: Final = 16  # bytes


@dataclass(frozen=True, slots=True)
class Frozen:
    """What is going to be a dataset."""

    unit: Unit
    manifest: Manifest
    rows: tuple[tuple[int, bytes, bytes], ...]
    """(cursor of the unit, cursors of its trajectories, digests of their content)."""

    @property
    def digest(self) -> str:
        """SHA-256 over the digests of the members, sorted."""
        whole = b"".join(digests for _, _, digests in self.rows)
        parts = sorted(whole[start : start + _DIGEST] for start in range(0, len(whole), _DIGEST))
        return hashlib.sha256(self.unit.encode() + b"".join(parts)).hexdigest()


def collect(connection: sa.Connection, selection: Selection, unit: Unit) -> Frozen:
    """What the selection wants now: units that are ready, with the members that it and its rules leave."""
    spec = LeaseSpec(consumer=new_id("freeze"), unit=unit, selection=selection)
    rows: list[tuple[int, bytes, bytes]] = []
    for chunk in _chunks(everything(connection, spec)):
        for one, members in _left(connection, selection, unit, chunk):
            digests = _digests(connection, members)
            rows.append((one.cursor, np.array(members, "<i8").tobytes(), b"".join(digests)))
    return Frozen(unit, _manifest(connection, selection, rows), tuple(rows))


def _chunks(units: Iterator[Candidate]) -> Iterator[list[Candidate]]:
    chunk: list[Candidate] = []
    for unit in units:
        if not unit.dropped:
            chunk.append(unit)
        if len(chunk) == _CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _left(
    connection: sa.Connection, selection: Selection, unit: Unit, chunk: Sequence[Candidate]
) -> Iterator[tuple[Candidate, tuple[int, ...]]]:
    """The units with the cursors of the members that the rules leave."""
    if not selection.rules:
        yield from ((one, one.members) for one in chunk)
        return
    wanted = [(one.cursor, one.members) for one in chunk]
    for sifted in sift(selection, chunk, queries.units(connection, wanted, single=unit == "trajectory")):
        if sifted.group is not None:
            gone = {cursor for cursor, _ in sifted.out}
            yield sifted.unit, tuple(cursor for cursor in sifted.unit.members if cursor not in gone)


def _digests(connection: sa.Connection, members: Sequence[int]) -> list[bytes]:
    """Of each trajectory: 16 bytes of the SHA-256 of its record, its steps, the rewards that hold and its end."""
    taken = sa.select(steps.c.trajectory_cursor, steps.c.cursor, steps.c.id, steps.c.digest).order_by(steps.c.position)
    own: dict[int, list[bytes]] = {cursor: [] for cursor in members}
    ids: dict[int | None, str] = {None: ""}
    for row in select_in(connection, taken, steps.c.trajectory_cursor, members):
        own[row.trajectory_cursor].append(bytes(row.digest))
        ids[row.cursor] = row.id
    facts = {cursor: Facts() for cursor in members}
    said = sa.select(annotations).where(annotations.c.kind == "reward").order_by(annotations.c.cursor)
    for row in select_in(connection, said, annotations.c.trajectory_cursor, members):
        facts[row.trajectory_cursor].add(ids[row.step_cursor], row.kind, row.name, row.value)
    found = {row.cursor: row for row in select_in(connection, sa.select(trajectories), trajectories.c.cursor, members)}
    return [_digest(bytes(found[of].digest), own[of], facts[of], found[of].status) for of in members]


def _digest(record: bytes, taken: Sequence[bytes], facts: Facts, status: str) -> bytes:
    rewards = sorted((str(target), name, value) for (target, name), value in facts.rewards.items())
    return hashlib.sha256(msgspec.msgpack.encode((record, taken, rewards, status))).digest()[:_DIGEST]


def _manifest(connection: sa.Connection, selection: Selection, rows: Sequence[tuple[int, bytes, bytes]]) -> Manifest:
    members = [int(cursor) for _, blob, _ in rows for cursor in np.frombuffer(blob, "<i8")]
    found = list(select_in(connection, sa.select(trajectories), trajectories.c.cursor, members))
    versions = [row for row in found if row.policy_version_min is not None]
    rewards = [row.reward for row in found if row.reward is not None]
    return Manifest(
        selection=selection,
        cursor=connection.scalars(queries.newest_cursor).one(),
        software=f"stepwell {version_of('stepwell')}",
        units=len(rows),
        trajectories=len(members),
        steps=sum(row.steps for row in found),
        tokens=sum(row.prompt_tokens + row.response_tokens for row in found),
        policy_version_min=min((row.policy_version_min for row in versions), default=None),
        policy_version_max=max((row.policy_version_max for row in versions), default=None),
        reward_mean=math.fsum(rewards) / len(rewards) if rewards else None,
        agents=tuple(sorted({row.agent for row in found})),
        sources=tuple(sorted({row.source for row in found})),
    )


def store(connection: sa.Connection, name: str, frozen: Frozen) -> DatasetInfo:
    """Give `frozen` the next version under `name`; if nothing has changed since the last one, that one stays.

    Raises:
        InvalidRequest: it is empty, or the name cannot be one.
    """
    if not name or "@" in name or len(name) > 256:
        raise InvalidRequest(f"a dataset must have a name of 1 to 256 characters without '@', got {name!r}")
    if not frozen.rows:
        raise InvalidRequest("the selection wants nothing that is ready, so there is nothing to freeze")
    newest = connection.execute(_versions(name).limit(1)).one_or_none()
    if newest is not None and newest.digest == frozen.digest:
        return _info(newest)
    row = {
        "name": name,
        "version": newest.version + 1 if newest is not None else 1,
        "unit": frozen.unit,
        "digest": frozen.digest,
        "manifest": frozen.manifest.model_dump_json(),
        "created_at": time.time(),
    }
    connection.execute(sa.insert(datasets), [row])
    own = {"name": name, "version": row["version"]}
    units = [{**own, "unit_cursor": of, "members": members, "digests": each} for of, members, each in frozen.rows]
    connection.execute(sa.insert(dataset_units), units)
    return info(connection, f"{name}@{row['version']}")


def everyone(connection: sa.Connection) -> list[DatasetInfo]:
    """All versions of all datasets, by name, newest first."""
    rows = connection.execute(sa.select(datasets).order_by(datasets.c.name, datasets.c.version.desc()))
    return [_info(row) for row in rows]


def info(connection: sa.Connection, name: str) -> DatasetInfo:
    """`name`, of its newest version, or `name@version`. Raises NotFound."""
    return _info(queries.dataset_row(connection, name))


def diff(connection: sa.Connection, before: str, after: str) -> DatasetDiff:
    """What `after` has otherwise than `before`. Raises NotFound."""
    old, new = (_members(connection, info(connection, name)) for name in (before, after))
    changed = [cursor for cursor in old.keys() & new.keys() if old[cursor] != new[cursor]]
    cursors = [*(new.keys() - old.keys()), *(old.keys() - new.keys()), *changed]
    statement = sa.select(trajectories.c.cursor, trajectories.c.id)
    ids = {row.cursor: row.id for row in select_in(connection, statement, trajectories.c.cursor, cursors)}

    def named(chosen: "set[int] | list[int]") -> tuple[str, ...]:
        return tuple(ids[cursor] for cursor in sorted(chosen))

    return DatasetDiff(
        added=named(new.keys() - old.keys()), removed=named(old.keys() - new.keys()), changed=named(changed)
    )


def chunk(connection: sa.Connection, dataset: DatasetInfo, after: int) -> tuple[tuple[Group, ...], int | None]:
    """Some units of a dataset with all their data, those after the unit at `after`; and where to go on."""
    own = (dataset_units.c.name == dataset.name, dataset_units.c.version == dataset.version)
    page = sa.select(dataset_units).where(*own, dataset_units.c.unit_cursor > after)
    rows = connection.execute(page.order_by(dataset_units.c.unit_cursor).limit(_CHUNK)).all()
    wanted = [(row.unit_cursor, [int(cursor) for cursor in np.frombuffer(row.members, "<i8")]) for row in rows]
    found = queries.units(connection, wanted, single=dataset.unit == "trajectory")
    return found, wanted[-1][0] if wanted else None


def _versions(name: str) -> sa.Select[Any]:
    return sa.select(datasets).where(datasets.c.name == name).order_by(datasets.c.version.desc())


def _members(connection: sa.Connection, dataset: DatasetInfo) -> dict[int, bytes]:
    own = (dataset_units.c.name == dataset.name, dataset_units.c.version == dataset.version)
    found: dict[int, bytes] = {}
    for row in connection.execute(sa.select(dataset_units).where(*own)):
        for place, cursor in enumerate(np.frombuffer(row.members, "<i8")):
            found[int(cursor)] = row.digests[place * _DIGEST : (place + 1) * _DIGEST]
    return found


def _info(row: sa.Row[Any]) -> DatasetInfo:
    return DatasetInfo(
        name=row.name,
        version=row.version,
        unit=row.unit,
        digest=row.digest,
        created_at=row.created_at,
        manifest=Manifest.model_validate_json(row.manifest),
    )
