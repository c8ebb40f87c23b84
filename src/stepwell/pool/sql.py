"""The pool in a SQL database, whichever: one writer thread, readers from a pool of connections."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar, get_args

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, NotFound, PoolError
from stepwell.pool import (
    consuming,
    crediting,
    datasets,
    feed,
    groups,
    listing,
    preview,
    queries,
    retention,
    saved,
    texts,
    verification,
    watching,
)
from stepwell.pool.activity import Activity, Origin
from stepwell.pool.base import Fault, ForkCount, GroupSummary, PoolStats, Receipt, RecordKind, Refill, TrajectorySummary
from stepwell.pool.credit import StepCredit
from stepwell.pool.frozen import DatasetDiff, DatasetInfo
from stepwell.pool.keeping import Pruned, Retention
from stepwell.pool.lease import Consumption, HeldLease, Lease, LeaseSpec, ReadyCount, Unit
from stepwell.pool.outline import StepOutline
from stepwell.pool.patience import PATIENCE, Patience
from stepwell.pool.rows import storable
from stepwell.pool.writer import Writer, storage_error
from stepwell.types import Annotation, Group, GroupInfo, Record, Step, Trajectory, UpdateInfo, Verdict

_T = TypeVar("_T")
_SCANNED: Final = 64
"""Trajectories that a scan holds at a time."""
_UNITS: Final = 8
"""Units that a scan of what is ready holds at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What differs between databases."""

    name: str
    """What errors call the pool: they reach clients of a gateway, whom its folder or server does not concern."""
    reader: sa.Engine
    """Its transactions only read, and see one state of the database however many SELECTs they run."""
    writer: sa.Engine | None
    """Its transactions follow one another, also those of other processes and machines; None: the pool is read-only."""
    passes: Callable[[SQLAlchemyError], bool]
    """Whether an error is of a kind that another try may overcome: the database is away, or chose this victim."""
    clock: Callable[[], float]
    """Unix time in seconds, by which leases expire."""
    backup: Callable[[Path], None]
    """Writes a copy of one moment to a file; see `Pool.backup`."""
    patience: float = PATIENCE
    """Seconds that operations wait for a database that is away."""


class SQLPool:
    """Meets `stepwell.pool.base.Pool`. Safe to use from many threads, and on one database from many processes.

    What a future of `append` resolved to is on disk: it survives the death of the process and of the machine.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._name = storage.name
        self._patience = Patience(storage.name, storage.passes, storage.patience)
        self._writer = None
        if storage.writer is not None:
            # of its own: a database that can be read may still refuse to be written
            patience = Patience(storage.name, storage.passes, storage.patience)
            self._writer = Writer(storage.writer, storage.name, patience)
        self._closed = False

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """See `Pool.append`."""
        if self._writer is None:
            refused: Future[list[Receipt]] = Future()
            refused.set_exception(self._read_only())
            return refused
        return self._writer.append(records)

    def put(self, *records: Record) -> None:
        """See `Pool.put`."""
        for receipt in self.append(records).result():
            if receipt.error is not None:
                raise receipt.error

    def step(self, step_id: str) -> Step:
        """See `Pool.step`."""
        return self._find(queries.step, step_id)

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """See `Pool.trajectory`."""
        return self._find(queries.trajectory, trajectory_id)

    def group_info(self, group_id: str) -> GroupInfo:
        """See `Pool.group_info`."""
        return self._find(queries.info_of_group, group_id)

    def group(self, group_id: str) -> Group:
        """See `Pool.group`."""
        return self._find(queries.group, group_id)

    def trajectories(
        self, selection: Selection | None = None, *, before: int | None = None, limit: int = 50
    ) -> list[tuple[int, TrajectorySummary]]:
        """See `Pool.trajectories`."""
        _check_limit(limit)
        self._index_texts(selection)
        return self._read(lambda connection: listing.page(connection, selection, before, limit))

    def count(self, selection: Selection | None = None) -> int:
        """See `Pool.count`."""
        self._index_texts(selection)
        return self._read(lambda connection: preview.count(connection, selection))

    def groups(
        self, channel: str | None = None, *, origin: str | None = None, before: int | None = None, limit: int = 50
    ) -> list[tuple[int, GroupSummary]]:
        """See `Pool.groups`."""
        _check_limit(limit)
        if not storable(f"{channel or ''}{origin or ''}"):
            return []
        return self._read(lambda connection: listing.group_page(connection, channel, origin, before, limit))

    def scan(self, selection: Selection | None = None) -> Iterator[Trajectory]:
        """See `Pool.scan`."""
        self._index_texts(selection)
        wanted = selection or Selection(verdicts=get_args(Verdict))
        after: int | None = 0
        while after is not None:
            read = partial(listing.wanted, selection=wanted, after=after, limit=_SCANNED)
            found, after = self._read(read)
            yield from found

    def log(
        self, *, after: int = 0, limit: int = 1000, kinds: Sequence[RecordKind] = (), channel: str | None = None
    ) -> list[tuple[int, Record]]:
        """See `Pool.log`."""
        _check_limit(limit)
        return self._read(lambda connection: listing.log(connection, after, limit, kinds, channel))

    def cursor(self) -> int:
        """See `Pool.cursor`."""
        return self._read(consuming.newest)

    def notes(self, trajectory_id: str) -> list[Annotation]:
        """See `Pool.notes`."""
        return self._find(listing.notes, trajectory_id)

    def _index_texts(self, selection: Selection | None) -> None:
        if selection is not None and selection.text:
            if self._writer is None and not self._read(texts.exists):
                raise PoolError(f"{self._name} has no index of texts and is opened read-only; search it writable once")
            while self._writer is not None and self._write(texts.follow):
                pass

    def updates(self, run: str | None = None) -> list[UpdateInfo]:
        """See `Pool.updates`."""
        if run is not None and not storable(run):
            return []
        return self._read(lambda connection: queries.all_updates(connection, run))

    def outline(self, trajectory_id: str) -> list[StepOutline]:
        """See `Pool.outline`."""
        if not storable(trajectory_id):
            return []
        return self._read(lambda connection: listing.outline(connection, trajectory_id))

    def steps(self, trajectory_id: str, *, first: int = 0, limit: int = 50) -> list[Step]:
        """See `Pool.steps`."""
        _check_limit(limit)
        if not storable(trajectory_id):
            return []
        return self._read(lambda connection: listing.steps_from(connection, trajectory_id, first, limit))

    def activity(self, since: float | None, until: float, *, parts: int = 60) -> Activity:
        """See `Pool.activity`."""
        _check_limit(parts)
        return self._read(lambda connection: watching.activity(connection, since, until, parts))

    def origins(self) -> list[Origin]:
        """See `Pool.origins`."""
        return self._read(watching.origins)

    def stats(self) -> PoolStats:
        """See `Pool.stats`."""
        return self._read(queries.stats)

    def forks(self, *, after: int = 0, until: int | None = None) -> list[ForkCount]:
        """See `Pool.forks`."""
        return self._read(lambda connection: queries.forks(connection, after, until))

    def lease(self, spec: LeaseSpec) -> Lease:
        """See `Pool.lease`."""
        if not isinstance(spec.selection, str):
            self._index_texts(spec.selection)
        return consuming.lease(self._write, self._read, spec, self._storage.clock)

    def backlog(self, spec: LeaseSpec, *, most: int) -> int:
        """See `Pool.backlog`."""
        _check_limit(most)
        return consuming.backlog(self._read, spec, most, self._storage.clock)

    def count_ready(self, selection: Selection, *, unit: Unit = "group") -> ReadyCount:
        """See `Pool.count_ready`."""
        self._index_texts(selection)
        return self._read(lambda connection: preview.ready(connection, selection, unit))

    def scan_ready(self, selection: Selection, *, unit: Unit = "group", limit: int | None = None) -> Iterator[Group]:
        """See `Pool.scan_ready`."""
        self._index_texts(selection)
        found = self._read(lambda connection: preview.units(connection, selection, unit, limit))
        for start in range(0, len(found), _UNITS):
            chosen = found[start : start + _UNITS]
            yield from self._read(partial(preview.whole, chosen=chosen, unit=unit))

    def extend(self, lease_id: str, seconds: float) -> float:
        """See `Pool.extend`."""
        until = self._storage.clock() + consuming.checked(seconds)
        self._change(lambda connection, own: feed.extend(connection, own, until), lease_id)
        return until

    def settle(self) -> int:
        """See `Pool.settle`."""
        now = self._storage.clock()
        return self._write(lambda connection: groups.settle(connection, now))

    def refills(self, channel: str | None = None) -> list[Refill]:
        """See `Pool.refills`."""
        if channel is not None and not storable(channel):
            return []
        return self._read(lambda connection: groups.refills(connection, channel))

    def consumption(self) -> list[Consumption]:
        """See `Pool.consumption`."""
        return self._read(consuming.consumption)

    def held(self) -> list[HeldLease]:
        """See `Pool.held`."""
        return self._read(consuming.held)

    def record_credit(self, run: str, policy_version: int, steps: Sequence[StepCredit]) -> None:
        """See `Pool.record_credit`."""
        blob, now = crediting.packed(steps), self._storage.clock()
        self._change(lambda connection, name: crediting.record(connection, name, policy_version, blob, now), run)

    def credit(self, run: str, policy_version: int) -> list[StepCredit]:
        """See `Pool.credit`."""
        return self._find(lambda connection, name: crediting.find(connection, name, policy_version), run)

    def require_producer(self, consumer: str) -> None:
        """See `Pool.require_producer`."""
        now = self._storage.clock()
        self._read(lambda connection: consuming.require_producer(connection, consumer, now))

    def heartbeat(self, producer: str, seconds: float = 60.0) -> None:
        """See `Pool.heartbeat`."""
        until = self._storage.clock() + consuming.checked(seconds)
        self._write(lambda connection: consuming.heartbeat(connection, producer, until))

    def acknowledge(self, lease_id: str) -> None:
        """See `Pool.acknowledge`."""
        self._change(feed.acknowledge, lease_id)

    def release(self, lease_id: str) -> None:
        """See `Pool.release`."""
        self._change(feed.release, lease_id)

    def drop_group(self, group_id: str, reason: str) -> None:
        """See `Pool.drop_group`."""
        if not storable(reason):
            raise InvalidRequest("a reason cannot hold NUL or lone surrogates")
        self._change(lambda connection, name: groups.drop(connection, name, reason), group_id)

    def release_all(self, consumer: str) -> int:
        """See `Pool.release_all`."""
        return self._write(lambda connection: feed.release_all(connection, consumer)) if storable(consumer) else 0

    def save_selection(self, name: str, selection: Selection) -> None:
        """See `Pool.save_selection`."""
        self._change(lambda connection, own: saved.save(connection, own, selection), name)

    def selection(self, name: str) -> Selection:
        """See `Pool.selection`."""
        return self._find(saved.selection, name)

    def selections(self) -> list[str]:
        """See `Pool.selections`."""
        return self._read(saved.names)

    def delete_selection(self, name: str) -> None:
        """See `Pool.delete_selection`."""
        self._change(saved.delete, name)

    def freeze(self, name: str, selection: Selection | str, *, unit: Unit = "group") -> DatasetInfo:
        """See `Pool.freeze`."""
        wanted = self.selection(selection) if isinstance(selection, str) else selection
        self._index_texts(wanted)
        frozen = self._read(lambda connection: datasets.collect(connection, wanted, unit))
        return self._change(lambda connection, own: datasets.store(connection, own, frozen), name)

    def datasets(self) -> list[DatasetInfo]:
        """See `Pool.datasets`."""
        return self._read(datasets.everyone)

    def dataset(self, name: str) -> DatasetInfo:
        """See `Pool.dataset`."""
        return self._find(datasets.info, name)

    def dataset_diff(self, before: str, after: str) -> DatasetDiff:
        """See `Pool.dataset_diff`."""
        _check_name(after)
        return self._find(lambda connection, old: datasets.diff(connection, old, after), before)

    def scan_dataset(self, name: str) -> Iterator[Group]:
        """See `Pool.scan_dataset`."""
        dataset = self.dataset(name)
        after: int | None = 0
        while after is not None:
            found, after = self._read(partial(datasets.chunk, dataset=dataset, after=after))
            yield from found

    def verify(self, *, repair: bool = False, progress: Callable[[int], None] = lambda _: None) -> list[Fault]:
        """See `Pool.verify`."""
        run = self._write if repair else self._read
        faults = [*run(verification.whole)]
        for part in verification.PARTS:
            after: int | None = 0
            while after is not None:
                chunk = run(partial(part, after=after, repair=repair))
                faults += chunk.faults
                after = chunk.after
                progress(chunk.checked)
        if repair:
            self._write(verification.mend)
        return faults

    def prune(self, kept: Retention, *, dry_run: bool = False) -> Pruned:
        """See `Pool.prune`."""
        self._index_texts(kept.selection)
        now = self._storage.clock()
        going = self._read(lambda connection: retention.doomed(connection, kept, now))
        pruned = self._read(lambda connection: retention.measured(connection, going))
        if not dry_run:
            for batch in self._read(lambda connection: retention.batches(connection, going)):
                self._write(partial(retention.forget, cursors=batch))
            self._write(lambda connection: crediting.forget(connection, kept, now))
        return pruned

    def backup(self, path: Path) -> None:
        """See `Pool.backup`."""
        self._storage.backup(path)

    def close(self) -> None:
        """See `Pool.close`. Idempotent; whatever is asked of a closed pool is refused with PoolError."""
        self._closed = True
        self._storage.reader.dispose()
        if self._writer is not None:
            self._writer.close()

    def _find(self, read: Callable[[sa.Connection, str], _T], record_id: str) -> _T:
        _check_name(record_id)
        return self._read(lambda connection: read(connection, record_id))

    def _change(self, write: Callable[[sa.Connection, str], _T], lease_id: str) -> _T:
        _check_name(lease_id)
        return self._write(lambda connection: write(connection, lease_id))

    def _read(self, work: Callable[[sa.Connection], _T]) -> _T:
        """Run `work` on a connection that sees one state of the pool, however many SELECTs it is asked."""

        def attempt() -> _T:
            if self._closed:
                raise PoolError(f"{self._name}: the pool is closed")
            try:
                with self._storage.reader.connect() as connection, connection.begin():
                    return work(connection)
            except SQLAlchemyError:
                self._storage.reader.dispose()  # what ended this connection has ended the idle ones too
                raise

        try:
            return self._patience.run(attempt)
        except SQLAlchemyError as error:
            raise storage_error(self._name, error) from error

    def _write(self, work: Callable[[sa.Connection], _T]) -> _T:
        """Run `work` in the writer's transaction. It must be idempotent: see `Writer.call`."""
        if self._writer is None:
            raise self._read_only()
        return self._writer.call(work).result()

    def _read_only(self) -> PoolError:
        return PoolError(f"{self._name} was opened read-only")


def _check_limit(limit: int) -> None:
    if limit < 1:
        raise InvalidRequest(f"limit must be at least 1, got {limit}")


def _check_name(name: str) -> None:
    """Refuse what no database could hold before a database sees it: each has words of its own for that."""
    if not storable(name):
        raise NotFound(f"{name!r} holds NUL or a lone surrogate; nothing in a pool is called that")
