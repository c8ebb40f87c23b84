"""What is searched for, as an address says it, and where an id leads."""

import csv
import io
from collections.abc import Iterable, Mapping
from datetime import tzinfo
from typing import Any, Final, get_args

from pydantic import ValidationError

from stepwell.curation.selection import Selection
from stepwell.dashboard.addresses import link, trajectory_address
from stepwell.dashboard.moments import TIMES, calendar, moment
from stepwell.errors import NotFound
from stepwell.pool.base import Pool, TrajectorySummary
from stepwell.types import Verdict

EVERY: Final = get_args(Verdict)
PAGE: Final = 50
"""Trajectories of a page of results."""
LISTS: Final = ("task_ids", "group_ids", "agents", "sources", "statuses", "verdicts", "tags", "without_tags")
NUMBERS: Final = (
    *("min_reward", "max_reward", "min_policy_version", "max_policy_version"),
    *("min_steps", "max_steps"),
)
WORDS: Final = ("channel", "text")
_NAMES: Final = (*LISTS, *NUMBERS, *TIMES, *WORDS)
_PREFIXES: Final = ("", "resp_", "msg_", "rs_", "chatcmpl-", "cmpl-")
"""What answers' ids have before the id of their step."""


Found = tuple[tuple[int, TrajectorySummary], ...]
"""(cursor, summary), newest first; at most `PAGE`."""


def read_page(pool: Pool, selection: Selection, before: int | None) -> Found:
    """The trajectories that `selection` wants, from those before the cursor `before` on.

    Raises:
        InvalidRequest: a name in it is one that no pool can hold.
        PoolError: the pool cannot be read, or has no index of texts and cannot make one.
    """
    return tuple(pool.trajectories(selection, before=before, limit=PAGE))


def selection_of(query: Mapping[str, str], zone: tzinfo) -> Selection:
    """What an address asks for. What is wrong in it is left out; a time without an offset is one of `zone`."""
    return Selection(**{"verdicts": EVERY} | _fields(query, zone))


def ignored(query: Mapping[str, str], zone: tzinfo) -> dict[str, str]:
    """What `selection_of` leaves out, because it is wrong."""
    fields = _fields(query, zone)
    return {name: query[name] for name in _NAMES if query.get(name, "").strip() and name not in fields}


def query_of(selection: Selection, zone: tzinfo) -> dict[str, str]:
    """The address of a selection: `selection_of` gives it back. Conditions that are not shown here are not in it."""
    said = {name: listed(getattr(selection, name)) for name in LISTS}
    if set(selection.verdicts) == set(EVERY):
        said["verdicts"] = ""
    said |= {name: str(value) for name in NUMBERS if (value := getattr(selection, name)) is not None}
    said |= {name: written_time(getattr(selection, name), zone) for name in TIMES}
    said |= {name: getattr(selection, name) or "" for name in WORDS}
    return {name: value for name, value in said.items() if value}


def written_time(seconds: float | None, zone: tzinfo) -> str:
    """A Unix time to the minute, with its offset; empty for None."""
    at = None if seconds is None else calendar(seconds, zone)
    return "" if at is None else at.isoformat(timespec="minutes")


def place_of(pool: Pool, wanted: str) -> str | None:
    """The page of the trajectory, step, answer or group with this id; None if there is none. Raises PoolError."""
    if pool.trajectories(Selection(trajectory_ids=(wanted,), verdicts=EVERY), limit=1):
        return trajectory_address(wanted)
    for prefix in _PREFIXES:
        try:
            step = pool.step(wanted.removeprefix(prefix))
        except NotFound:
            continue
        return trajectory_address(step.trajectory_id, step=step.index)
    try:
        pool.group_info(wanted)
    except NotFound:
        return None
    return link("/representation", group_ids=listed([wanted]))


def _fields(query: Mapping[str, str], zone: tzinfo) -> dict[str, Any]:
    values = {name: _value(name, query.get(name, "").strip(), zone) for name in _NAMES}
    return {name: value for name, value in values.items() if value is not None and _fits(name, value)}


def _value(name: str, text: str, zone: tzinfo) -> Any:
    """None: nothing is asked, or what is no time or word."""
    if not text or (name == "text" and not any(map(str.isalnum, text))):  # no index has what is no word
        return None
    if name in LISTS:
        return tuple(next(csv.reader([text]), []))
    if name in TIMES:
        return moment(text, zone)
    return text


def _fits(name: str, value: Any) -> bool:
    try:
        Selection.model_validate({name: value})
    except ValidationError:
        return False
    return True


def listed(values: Iterable[str]) -> str:
    """Names with commas between; those that hold commas or quotation marks are quoted."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()
