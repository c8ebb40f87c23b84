"""A selection as SQL over the table of trajectories, the same for every database."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest
from stepwell.pool import texts
from stepwell.pool.rows import storable
from stepwell.pool.schema import groups, tags, trajectories

Condition = sa.ColumnElement[bool]
_NAMES: Final = ("channel", "task_ids", "group_ids", "trajectory_ids", "agents", "sources", "tags", "without_tags")


def conditions(selection: Selection, dialect: str) -> list[Condition]:
    """What holds of the trajectories that `selection` wants; in the SQL of that `dialect`.

    Raises:
        InvalidRequest: a name in it is one that no pool can hold.
    """
    require_storable(selection)
    of = trajectories.c
    of_task = sa.select(groups.c.cursor).where(groups.c.task_id.in_(selection.task_ids))
    member_of = sa.select(groups.c.cursor).where(groups.c.id.in_(selection.group_ids))
    found = [
        *_equal(of.channel, selection.channel),
        *_among(of.id, selection.trajectory_ids),
        *_among(of.agent, selection.agents),
        *_among(of.source, selection.sources),
        *_among(of.status, selection.statuses),
        of.verdict.in_(selection.verdicts),
        *_between(of.reward, selection.min_reward, selection.max_reward),
        *_versions(of.policy_version_min, selection.min_policy_version, None),
        *_versions(of.policy_version_max, None, selection.max_policy_version),
        *_between(of.steps, selection.min_steps, selection.max_steps),
        *([of.created_at >= selection.created_after] if selection.created_after is not None else []),
        *([of.created_at < selection.created_before] if selection.created_before is not None else []),
        *(of.cursor.in_(_tagged([tag])) for tag in selection.tags),
    ]
    if selection.task_ids:
        of_group = sa.and_(of.task_id == "", of.group_cursor.in_(of_task))
        found.append(sa.or_(of.task_id.in_(selection.task_ids), of_group))
    if selection.group_ids:
        found.append(of.group_cursor.in_(member_of))
    if selection.text:
        found.append(of.cursor.in_(texts.matching(dialect, selection.text)))
    if selection.without_tags:
        found.append(of.cursor.not_in(_tagged(selection.without_tags)))
    return found


def require_storable(selection: Selection) -> None:
    """Raise InvalidRequest for a name that no pool can hold; databases would say so in words of their own."""
    for name in _NAMES:
        given = getattr(selection, name) or ()
        if not all(map(storable, [given] if isinstance(given, str) else given)):
            raise InvalidRequest(f"{name} of the selection has NUL or a lone surrogate, which nothing in a pool has")


def _equal(column: sa.Column[Any], value: object) -> list[Condition]:
    return [] if value is None else [column == value]


def _among(column: sa.Column[Any], values: Sequence[str]) -> list[Condition]:
    return [column.in_(values)] if values else []


def _between(column: sa.Column[Any], lowest: float | None, highest: float | None) -> list[Condition]:
    return [
        *([column >= lowest] if lowest is not None else []),
        *([column <= highest] if highest is not None else []),
    ]


def _versions(column: sa.Column[Any], lowest: int | None, highest: int | None) -> list[Condition]:
    """Without a step there is no token that another version sampled."""
    return [sa.or_(column.is_(None), condition) for condition in _between(column, lowest, highest)]


def _tagged(labels: Sequence[str]) -> sa.Select[tuple[int]]:
    return sa.select(tags.c.trajectory_cursor).where(tags.c.tag.in_(labels))
