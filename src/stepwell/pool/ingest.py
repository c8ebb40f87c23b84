"""What becomes of records that are submitted: a verdict on each, and the rows of those that are admitted.

Everything that the verdicts of a batch depend on is looked up first, with a few SELECTs for the whole batch; then each
record is judged in memory, in order; then the rows are written with one INSERT per table.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import sqlalchemy as sa

from stepwell.errors import Conflict, NotFound, StepwellError
from stepwell.pool import bulk, derived, queries, rows
from stepwell.pool.base import Receipt
from stepwell.pool.derived import DERIVED, TrajectoryState
from stepwell.pool.prepared import LookUp, Prepared
from stepwell.pool.rows import COLUMNS, TABLES, Draft, Row
from stepwell.pool.schema import groups, meta, steps, trajectories
from stepwell.pool.tokens import PACKED, StepPacker
from stepwell.types import Annotation, GroupInfo, Record, Step, TrajectoryInfo, UpdateInfo

NO_GROUP: Final = "default"
"""Channel of a trajectory that belongs to no group."""
_EXTRAS: Final[dict[type[Record], tuple[str, ...]]] = {
    GroupInfo: ("dropped",),
    TrajectoryInfo: ("group_cursor", "channel"),
    Step: ("trajectory_cursor", *PACKED),
    Annotation: ("trajectory_cursor", "step_cursor"),
    UpdateInfo: (),
}
"""The columns that depend on what is stored already."""
_INSERTED: Final = {
    kind: ("cursor", *COLUMNS[kind], "digest", *extras, *(DERIVED if kind is TrajectoryInfo else ()))
    for kind, extras in _EXTRAS.items()
}

_stored = {
    kind: LookUp(sa.select(table.c.id, table.c.cursor, table.c.digest), table.c.id) for kind, table in TABLES.items()
}
_groups = LookUp(sa.select(groups.c.id, groups.c.cursor, groups.c.digest, groups.c.channel), groups.c.id)
_steps = LookUp(sa.select(steps.c.id, steps.c.cursor, steps.c.digest, steps.c.trajectory_cursor), steps.c.id)
_positions = LookUp(sa.select(steps.c.trajectory_cursor, steps.c.position), steps.c.trajectory_cursor)
_states = sa.select(*(trajectories.c[name] for name in ("id", "digest", "cursor", "group_cursor", "channel", *DERIVED)))
_by_id = LookUp(_states, trajectories.c.id)
_by_cursor = LookUp(_states, trajectories.c.cursor)
_lock_cursor = Prepared(queries.newest_cursor.with_for_update())
_set_cursor = Prepared(sa.update(meta).where(meta.c.name == "cursor"), ["value"])


def append(connection: sa.Connection, records: Sequence[Record], packer: StepPacker) -> list[Receipt]:
    """Append to the log within the transaction of `connection`; one receipt per record, in order.

    If it raises, the transaction must be rolled back and `packer.forget()` called.
    """
    batch = _Batch(connection, packer)
    batch.look_up(records)
    with batch.inserting_steps(sum(isinstance(record, Step) for record in records)):
        receipts = [batch.judge(record) for record in records]
    batch.write()
    return receipts


def lock_cursor(connection: sa.Connection) -> int:
    """The newest cursor. Until the transaction ends, nobody else draws one, so no other writer does anything."""
    return int(_lock_cursor.execute(connection).fetchone()[0])


def draw_cursor(connection: sa.Connection) -> int:
    """A place in the log for something that is no record."""
    cursor = lock_cursor(connection) + 1
    _set_cursor.execute(connection, [{"value": cursor}])
    return cursor


_Stored = tuple[int, object]
"""Cursor and digest: what tells a retry from a conflict."""


@dataclass
class _Batch:
    """One batch on its way into the log: what its verdicts depend on, and what it is going to write."""

    connection: sa.Connection
    packer: StepPacker
    before: int = 0
    """The newest cursor when it began."""
    cursor: int = 0
    """The newest cursor, this batch included."""
    stored: dict[type[Record], dict[str, _Stored]] = field(default_factory=lambda: {kind: {} for kind in TABLES})
    channels: dict[str, str] = field(default_factory=dict)
    by_id: dict[str, TrajectoryState] = field(default_factory=dict)
    by_cursor: dict[int, TrajectoryState] = field(default_factory=dict)
    owners: dict[str, int] = field(default_factory=dict)
    """Where the trajectory of a step is, by the step's id."""
    occupied: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Indices that are taken: those of this batch, and all of trajectories to which steps come late."""
    rows: dict[type[Record], list[Row]] = field(default_factory=lambda: {kind: [] for kind in TABLES})
    insert: dict[type[Record], Callable[[Row], None]] = field(default_factory=dict)
    """What becomes of an admitted row: those of steps, which are large, are on their way at once."""
    new: list[TrajectoryState] = field(default_factory=list)
    touched: dict[int, TrajectoryState] = field(default_factory=dict)

    def look_up(self, records: Sequence[Record]) -> None:
        """Load all that the verdicts depend on."""
        wanted = _mentioned(records)
        self.before = self.cursor = lock_cursor(self.connection)
        for kind in (Annotation, UpdateInfo):
            for row in _stored[kind].rows(self.connection, wanted[kind]):
                self.stored[kind][row.id] = (row.cursor, row.digest)
        for row in _groups.rows(self.connection, wanted[GroupInfo]):
            self.stored[GroupInfo][row.id] = (row.cursor, row.digest)
            self.channels[row.id] = row.channel
        for row in _steps.rows(self.connection, wanted[Step]):
            self.stored[Step][row.id] = (row.cursor, row.digest)
            self.owners[row.id] = row.trajectory_cursor
        self._load_trajectories(_by_id, wanted[TrajectoryInfo])
        beyond = set(self.owners.values()) - self.by_cursor.keys()
        self._load_trajectories(_by_cursor, list(beyond))
        if wanted[Annotation]:
            derived.load_facts(self.connection, self.by_cursor.values())
        self._load_occupied(records)

    def _load_trajectories(self, look_up: LookUp, values: Sequence[object]) -> None:
        for row in look_up.rows(self.connection, values):
            state = TrajectoryState(*row[2:])
            self.stored[TrajectoryInfo][row.id] = (row.cursor, row.digest)
            self.by_id[row.id] = self.by_cursor[row.cursor] = state

    def _load_occupied(self, records: Sequence[Record]) -> None:
        """Which indices are taken, of trajectories to which steps come late: nearly all come in order."""
        late = {
            state.cursor
            for record in records
            if isinstance(record, Step) and (state := self.by_id.get(record.trajectory_id)) is not None
            if record.index < state.next_index
        }
        for row in _positions.rows(self.connection, list(late)):
            self.occupied[row.trajectory_cursor].add(row.position)

    @contextmanager
    def inserting_steps(self, expected: int) -> Iterator[None]:
        """While records are judged, of which so many are steps: nothing is looked up meanwhile."""
        self.insert = {kind: rows.append for kind, rows in self.rows.items()}
        with bulk.inserting(self.connection, steps, _INSERTED[Step], expected) as self.insert[Step]:
            yield

    def judge(self, record: Record) -> Receipt:
        """Admit the record, or say why not."""
        stored = self.stored[type(record)]
        cursor = self.cursor + 1
        try:
            draft = rows.draft(record, self.packer)
            if record.id in stored:
                return _again(record.id, stored[record.id], draft.digest)
            extra = self._admit(draft, cursor)
        except StepwellError as error:
            return Receipt(id=record.id, cursor=None, error=error)
        self.cursor = cursor
        stored[record.id] = (cursor, draft.digest)
        self.insert[type(record)]((cursor, *draft.row, bytearray(draft.digest), *extra))
        return Receipt(id=record.id, cursor=cursor)

    def _admit(self, draft: Draft, cursor: int) -> Row:
        """The values of `_EXTRAS`. Changes nothing if it raises."""
        match draft.record:
            case Step():
                return self._admit_step(draft.record, draft, cursor)
            case TrajectoryInfo():
                return self._admit_trajectory(draft.record, cursor)
            case Annotation():
                return self._admit_annotation(draft.record, cursor)
            case GroupInfo():
                self.channels[draft.record.id] = draft.record.channel
                return ("",)
            case UpdateInfo():
                return ()

    def _admit_trajectory(self, info: TrajectoryInfo, cursor: int) -> Row:
        group = self.stored[GroupInfo].get(info.group_id) if info.group_id is not None else None
        if group is None and info.group_id is not None:
            raise NotFound(f"trajectory {info.id!r} names the group {info.group_id!r}, which the pool does not hold")
        channel = self.channels[info.group_id] if info.group_id is not None else NO_GROUP
        state = TrajectoryState(cursor, group[0] if group else None, channel)
        self.by_id[info.id] = self.by_cursor[cursor] = self.touched[cursor] = state
        self.new.append(state)
        return (state.group_cursor, channel)

    def _admit_step(self, step: Step, draft: Draft, cursor: int) -> Row:
        state = self._owner(step.trajectory_id, "step", step.id)
        if state.status != "open":
            raise Conflict(f"trajectory {step.trajectory_id!r} has ended ({state.status}); it takes no step any more")
        occupied = self.occupied[state.cursor]
        if step.index < state.next_index and step.index in occupied:
            raise Conflict(f"trajectory {step.trajectory_id!r} already has a step at index {step.index}")
        packed: Row = ()
        if draft.payload:
            packed = self.packer.pack(draft.payload, trajectory=state.cursor, cursor=cursor, number=state.steps)
        occupied.add(step.index)
        self.owners[step.id] = state.cursor
        self.touched[state.cursor] = state
        state.add_step(step)
        return (state.cursor, *packed)

    def _admit_annotation(self, note: Annotation, cursor: int) -> Row:
        of_step = note.target == "step"
        step = self.stored[Step].get(note.target_id) if of_step else None
        if step is None and of_step:
            raise NotFound(f"annotation {note.id!r} is about the step {note.target_id!r}, which the pool does not hold")
        state = (
            self.by_cursor[self.owners[note.target_id]]
            if of_step
            else self._owner(note.target_id, "annotation", note.id)
        )
        if note.kind == "end" and state.status not in ("open", note.name):
            raise Conflict(f"trajectory {note.target_id!r} has ended as {state.status}; it cannot end as {note.name}")
        self.touched[state.cursor] = state
        if note.kind == "end":
            self.packer.ended(note.target_id)
        of = None if step is None else step[0]
        state.add_annotation(note, of, cursor)
        return (state.cursor, of)

    def _owner(self, trajectory_id: str, kind: str, name: str) -> TrajectoryState:
        state = self.by_id.get(trajectory_id)
        if state is None:
            raise NotFound(f"{kind} {name!r} names the trajectory {trajectory_id!r}, which the pool does not hold")
        return state

    def write(self) -> None:
        """Write what else was admitted and bring the derived columns up to date."""
        if self.cursor == self.before:
            return
        opened = zip(self.rows[TrajectoryInfo], self.new, strict=True)
        self.rows[TrajectoryInfo] = [(*row, *state.derived()) for row, state in opened]
        for kind, table in TABLES.items():
            bulk.insert(self.connection, table, _INSERTED[kind], self.rows[kind])
        _set_cursor.execute(self.connection, [{"value": self.cursor}])
        derived.update(self.connection, list(self.touched.values()), {state.cursor for state in self.new})


def _again(record_id: str, stored: _Stored, digest: bytes) -> Receipt:
    """The receipt of a record that is there already, or of another one of that name."""
    cursor, held = stored
    if held != digest:
        raise Conflict(f"{record_id!r} is already in the pool with other content; records never change")
    return Receipt(id=record_id, cursor=cursor, duplicate=True)


def _mentioned(records: Iterable[Record]) -> dict[type[Record], list[str]]:
    """Ids of all records that a batch submits or refers to, as far as there can be such."""
    ids: dict[type[Record], set[str]] = {kind: set() for kind in TABLES}
    for record in records:
        ids[type(record)].add(record.id)
        if isinstance(record, Step):
            ids[TrajectoryInfo].add(record.trajectory_id)
        elif isinstance(record, Annotation):
            ids[Step if record.target == "step" else TrajectoryInfo].add(record.target_id)
        elif isinstance(record, TrajectoryInfo) and record.group_id is not None:
            ids[GroupInfo].add(record.group_id)
    return {kind: _storable(names) for kind, names in ids.items()}


def _storable(names: Collection[str]) -> list[str]:
    """Without those that no database can be asked for."""
    return list(names) if rows.storable("".join(names)) else [name for name in names if rows.storable(name)]
