"""What can be looked up and decided from afar, and the live log: pure functions, shared by all clients."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote, urlencode

from stepwell.client.requests import Call, done, error_of, step_of
from stepwell.curation.selection import Selection
from stepwell.pool.base import KINDS, GroupSummary, Refill, TrajectorySummary
from stepwell.pool.frozen import DatasetInfo, Manifest
from stepwell.pool.lease import Consumption, Unit
from stepwell.types import GroupInfo, Record, TrajectoryInfo, UpdateInfo

T = TypeVar("T")

PAGE: Final = 200
"""Lines of a listing that are read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[T]):
    """Lines of a listing."""

    lines: tuple[T, ...]
    before: int | None
    """Where the next page begins; None if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """A record and its place in the pool's log."""

    cursor: int
    record: Record


class Tail:
    """The live log as it is read, line by line: knows behind which record to go on after a lost connection."""

    def __init__(self, after: int) -> None:
        """Begin behind the cursor `after`."""
        self._after = after
        self._event: dict[str, str] = {}

    def path(self) -> str:
        """Where to connect, for the first time or again."""
        self._event = {}
        return f"/v1/log/tail?after={self._after}"

    def read(self, line: str) -> Logged | None:
        """Take a line of the stream of events; gives a record with the line that ends its event.

        Raises:
            StepwellError: the gateway says that it failed.
        """
        if line:
            name, _, value = line.partition(":")
            self._event[name] = value.removeprefix(" ")
            return None
        event, self._event = self._event, {}
        if "data" not in event:
            return None
        shape = json.loads(event["data"])
        if event.get("event") == "error":
            raise error_of(shape["error"])
        self._after = shape["cursor"]
        return Logged(cursor=shape["cursor"], record=_record(shape["kind"], shape["record"]))


def consumption() -> Call[list[Consumption]]:
    """What consumers have had."""
    return Call(method="GET", path="/v1/consumption", read=_each(_consumption))


def refills(channel: str | None) -> Call[list[Refill]]:
    """Groups that lack trajectories."""
    return Call(method="GET", path=_asked("/v1/refills", channel=channel), read=_each(lambda line: Refill(**line)))


def trajectories(selection: Selection | str | None, before: int | None) -> Call[Page[TrajectorySummary]]:
    """A page of trajectories."""
    wanted = selection.model_dump_json() if isinstance(selection, Selection) else selection
    path = _asked("/v1/trajectories", limit=PAGE, before=before, selection=wanted)
    return Call(method="GET", path=path, read=_page(TrajectorySummary, TrajectoryInfo))


def groups(channel: str | None, before: int | None) -> Call[Page[GroupSummary]]:
    """A page of groups."""
    path = _asked("/v1/groups", limit=PAGE, before=before, channel=channel)
    return Call(method="GET", path=path, read=_page(GroupSummary, GroupInfo))


def selections() -> Call[list[str]]:
    """Names of saved selections."""
    return Call(method="GET", path="/v1/selections", read=lambda answer: answer["data"])


def selection(name: str) -> Call[Selection]:
    """A saved selection."""
    return Call(method="GET", path=_selection(name), read=Selection.model_validate)


def save_selection(name: str, wanted: Selection) -> Call[None]:
    """Save a selection."""
    return Call(method="PUT", path=_selection(name), body=wanted.model_dump_json().encode(), read=done)


def datasets() -> Call[list[DatasetInfo]]:
    """All versions of all datasets."""
    return Call(method="GET", path="/v1/datasets", read=_each(_dataset))


def freeze(name: str, wanted: Selection | str, unit: Unit) -> Call[DatasetInfo]:
    """Make the next version of a dataset."""
    selected = wanted if isinstance(wanted, str) else wanted.model_dump(mode="json")
    body = json.dumps({"name": name, "selection": selected, "unit": unit}).encode()
    return Call(path="/v1/datasets", body=body, read=_dataset)


def _selection(name: str) -> str:
    return f"/v1/selections/{quote(name, safe='')}"


def _asked(path: str, **parameters: str | int | None) -> str:
    given = {name: value for name, value in parameters.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _each(read: Callable[[Any], T]) -> Callable[[Any], list[T]]:
    return lambda answer: [read(line) for line in answer["data"]]


def _page(kind: Callable[..., T], info: Callable[..., Any]) -> Callable[[Any], Page[T]]:
    def read(answer: Any) -> Page[T]:
        shapes = ({name: value for name, value in line.items() if name != "cursor"} for line in answer["data"])
        lines = tuple(kind(**{**shape, "info": info(**shape["info"])}) for shape in shapes)
        return Page(lines=lines, before=answer["next"])

    return read


def _consumption(line: Mapping[str, Any]) -> Consumption:
    return Consumption(**{**line, "dropped": tuple((reason, units) for reason, units in line["dropped"])})


def _dataset(line: Mapping[str, Any]) -> DatasetInfo:
    return DatasetInfo(**{**line, "manifest": Manifest.model_validate(line["manifest"])})


def _record(kind: str, shape: Mapping[str, Any]) -> Record:
    if kind == "step":
        return step_of(shape)
    if kind == "update":
        metrics = tuple((name, math.nan if value is None else value) for name, value in shape["metrics"].items())
        return UpdateInfo(**{**shape, "metrics": metrics})
    return KINDS[kind](**shape)  # type: ignore[index]  # an unknown kind is a newer gateway's: a KeyError says which
