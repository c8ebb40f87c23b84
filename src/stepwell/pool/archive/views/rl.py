"""The view `rl`: the exact records. One row per step, from which every record comes back as it was.

The columns are the fields of the records, so they follow `stepwell.types` by themselves: those of a group begin with
`group_`, those of a trajectory with `trajectory_`; of a step, `id`, `index` and `created_at` begin with `step_`. An
annotation of a step stands in its row, one of the trajectory in the trajectory's first row; `order` restores the order
of arrival among them. A trajectory without steps, or a group without trajectories, has one row with the rest null.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, cast, get_type_hints

import msgspec

from stepwell.errors import InvalidRecord
from stepwell.pool.archive.entries import Entry
from stepwell.pool.archive.flaws import Flaws
from stepwell.pool.archive.table import Row
from stepwell.types import Annotation, Floats, GroupInfo, Ids, Record, Sampling, Step, Trajectory, TrajectoryInfo

_T = TypeVar("_T")
_TEXTS: Final = ("request", "response")
"""Fields of a step that may hold lone surrogates, which no format writes as text."""
_ARRAYS: Final[Mapping[object, object]] = {
    Ids: Annotated[Any, msgspec.Meta(extra={"items": "int32"})],
    Floats: Annotated[Any, msgspec.Meta(extra={"items": "float32"})],
}
_STEP_NAMES: Final = {name: f"step_{name}" for name in ("id", "index", "created_at")}


def _columns(record: type, prefix: str = "", **names: str) -> dict[str, str]:
    """Field to column of a record."""
    return {f.name: names.get(f.name, f"{prefix}{f.name}") for f in dataclasses.fields(record)}


GROUP: Final = _columns(GroupInfo, "group_")
TRAJECTORY: Final = _columns(TrajectoryInfo, "trajectory_", group_id="group_id")
STEP: Final = {field: name for field, name in _columns(Step, **_STEP_NAMES).items() if field != "sampling"}
SAMPLING: Final = _columns(Sampling)
_OWN_TRAJECTORY: Final = {field: name for field, name in TRAJECTORY.items() if field != "group_id"}
_OWN_STEP: Final = {field: name for field, name in STEP.items() if field != "trajectory_id"}
NOTE: Final = {field: name for field, name in _columns(Annotation).items() if field != "target_id"}


def _fields(record: type, columns: Mapping[str, str]) -> list[tuple[str, Any, None]]:
    hints = get_type_hints(record)
    return [(name, _optional(_ARRAYS.get(hints[field], hints[field])), None) for field, name in columns.items()]


def _optional(hint: Any) -> Any:
    return hint | None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part of a trajectory's reward."""

    name: str
    value: float


Note: Final = msgspec.defstruct("Note", [("order", int), *_fields(Annotation, NOTE)], frozen=True, kw_only=True)

_DERIVED: Final = [
    ("trajectory_status", str | None, None),
    ("trajectory_why", str | None, None),
    ("trajectory_reward", float | None, None),
    ("trajectory_reward_parts", list[Part] | None, None),
    ("trajectory_verdict", str | None, None),
    ("trajectory_tags", list[str] | None, None),
    ("step_reward", float | None, None),
]
"""For whoever reads the file; a pool derives them from the annotations, so the import leaves them alone."""


class _StepRow(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Steps of agents, with the exact token ids and log-probabilities, rewards and annotations."""

    def weight(self) -> int:
        """See `Row`."""
        values = (getattr(self, name) for name in (*STEP.values(), "annotations"))
        return 512 + sum(_bytes(value) for value in values)


def _bytes(value: Any) -> int:
    if isinstance(value, list):
        return 256 * len(value)
    return len(value) if isinstance(value, str) else int(getattr(value, "nbytes", 8))


StepRow: Final = cast(
    type[Row],
    msgspec.defstruct(
        "StepRow",
        [
            *_fields(GroupInfo, GROUP),
            *_fields(TrajectoryInfo, _OWN_TRAJECTORY),
            *_DERIVED,
            *_fields(Step, _OWN_STEP),
            *((f"{text}_bytes", bytes | None, None) for text in _TEXTS),
            *_fields(Sampling, SAMPLING),
            ("annotations", list[Note] | None, None),  # type: ignore[valid-type]  # made above
        ],
        bases=(_StepRow,),
        namespace={"__doc__": _StepRow.__doc__},
        frozen=True,
        kw_only=True,
        omit_defaults=True,
    ),
)
"""A row: one column per field, all of them optional, since a row need not have a step."""


@dataclass(frozen=True, slots=True)
class Exact:
    """The view `rl`."""

    @property
    def row(self) -> type[Row]:
        """See `View`."""
        return StepRow

    def rows(self, entries: Iterable[Entry], skipped: Counter[str]) -> Iterator[Row]:  # noqa: ARG002 - nothing is
        """See `View`. Raises InvalidRecord for an entry without the annotations that its reward or end came from."""
        for entry in entries:
            yield from _rows(entry)


def _rows(entry: Entry) -> Iterator[Row]:
    shared = _written(entry.group, GROUP) if entry.group else {}
    if entry.trajectory is None:
        yield StepRow(**shared)
        return
    trajectory = entry.trajectory
    _refuse_incomplete(trajectory, entry.notes)
    notes = _notes_by_place(entry)
    shared |= {**_written(trajectory.info, TRAJECTORY), **_derived(trajectory)}
    if not trajectory.steps:
        yield StepRow(**shared, annotations=notes[""])
    for position, (step, reward) in enumerate(zip(trajectory.steps, trajectory.step_rewards, strict=True)):
        own = notes[step.id] if position else notes[""] + notes[step.id]
        yield StepRow(**shared, **_step_columns(step), step_reward=reward, annotations=own)


def _written(record: object, columns: Mapping[str, str]) -> dict[str, Any]:
    return {name: getattr(record, field) for field, name in columns.items()}


def _refuse_incomplete(trajectory: Trajectory, notes: Sequence[Annotation]) -> None:
    told = {
        "end": trajectory.status != "open",
        "reward": trajectory.reward is not None,
        "verdict": trajectory.verdict != "clear",
        "tag": bool(trajectory.tags),
    }
    lost = [kind for kind, there in told.items() if there and all(note.kind != kind for note in notes)]
    if lost:
        raise InvalidRecord(
            f"trajectory {trajectory.info.id} comes without the annotations that its {' and '.join(lost)} came from, "
            "so they would be lost; give it as an Entry with all its notes"
        )


def _notes_by_place(entry: Entry) -> dict[str, list[msgspec.Struct]]:
    """By step id; under "" those of the trajectory."""
    assert entry.trajectory is not None
    places: dict[str, list[msgspec.Struct]] = {"": [], **{step.id: [] for step in entry.trajectory.steps}}
    for order, note in enumerate(entry.notes):
        place = note.target_id if note.target == "step" else ""
        if place not in places:
            raise InvalidRecord(f"annotation {note.id} is of step {place}, which its trajectory does not have")
        places[place].append(Note(order=order, **_written(note, NOTE)))
    return places


def _derived(trajectory: Trajectory) -> dict[str, Any]:
    return {
        "trajectory_status": trajectory.status,
        "trajectory_why": trajectory.why,
        "trajectory_reward": trajectory.reward,
        "trajectory_reward_parts": [Part(name=name, value=value) for name, value in trajectory.reward_parts],
        "trajectory_verdict": trajectory.verdict,
        "trajectory_tags": list(trajectory.tags),
    }


def _step_columns(step: Step) -> dict[str, Any]:
    columns = _written(step, _OWN_STEP)
    for name in _TEXTS:
        try:
            columns[name].encode()
        except UnicodeEncodeError:
            columns[f"{name}_bytes"] = columns[name].encode("utf-8", "surrogatepass")
            columns[name] = columns[name].encode("utf-8", "replace").decode()
    return columns | _written(step.sampling, SAMPLING)


def records(rows: Iterable[tuple[Path, int, Row]], flaws: Flaws) -> Iterator[Record]:
    """The records of rows, each with its file and number, in an order that a pool takes.

    The rows of a trajectory must follow each other, as they do where they were written; its annotations come after its
    steps. Rows that hold no valid records are flaws.
    """
    group_id = trajectory_id = None
    notes: list[tuple[int, Annotation]] = []
    for file, number, row in rows:
        try:
            found = _found(row)
        except (InvalidRecord, TypeError, UnicodeDecodeError) as error:
            flaws.add(file, number, error)
            continue
        if found.trajectory is None or found.trajectory.id != trajectory_id:
            yield from _in_order(notes)
            notes = []
        if found.group and found.group.id != group_id:
            group_id = found.group.id
            yield found.group
        if found.trajectory and found.trajectory.id != trajectory_id:
            trajectory_id = found.trajectory.id
            yield found.trajectory
        if found.step:
            yield found.step
        notes.extend(found.notes)
    yield from _in_order(notes)


def _in_order(notes: Iterable[tuple[int, Annotation]]) -> Iterator[Annotation]:
    return (note for _, note in sorted(notes, key=lambda pair: pair[0]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    group: GroupInfo | None
    trajectory: TrajectoryInfo | None
    step: Step | None
    notes: list[tuple[int, Annotation]]


def _found(row: Row) -> _Found:
    value = {name: getattr(row, name) for name in row.__struct_fields__}
    group = _record(GroupInfo, GROUP, value) if value["group_size"] is not None else None
    if value["trajectory_id"] is None:
        if group is None:
            raise InvalidRecord("it has neither a trajectory nor a group")
        return _Found(group=group, trajectory=None, step=None, notes=[])
    trajectory = _record(TrajectoryInfo, TRAJECTORY, value)
    step = None
    if value["step_id"] is not None:
        for name in _TEXTS:
            if value[f"{name}_bytes"] is not None:
                value[name] = value[f"{name}_bytes"].decode("utf-8", "surrogatepass")
        step = _record(Step, STEP, value, sampling=_record(Sampling, SAMPLING, value))
    return _Found(
        group=group, trajectory=trajectory, step=step, notes=[_note(note, value) for note in value["annotations"] or ()]
    )


def _note(note: Any, row: Mapping[str, Any]) -> tuple[int, Annotation]:
    given = {name: getattr(note, name) for name in note.__struct_fields__}
    return note.order, _record(Annotation, NOTE, given, target_id=row[f"{note.target}_id"])


def _record(kind: type[_T], columns: Mapping[str, str], row: Mapping[str, Any], **more: Any) -> _T:
    """The record in these columns. One that is null keeps the field's default; without a default it is a mistake."""
    given = {field: row[name] for field, name in columns.items() if row[name] is not None}
    return kind(**given, **more)
