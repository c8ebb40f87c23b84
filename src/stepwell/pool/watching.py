"""What has come in lately. Steps are read from an index that holds all that is asked of them, never from their rows."""

from typing import Final, get_args

import numpy as np
import numpy.typing as npt
import sqlalchemy as sa

from stepwell.curation.selection import Selection
from stepwell.pool import listing
from stepwell.pool.activity import Activity, Arrivals, Interval, Origin, Session
from stepwell.pool.prepared import Prepared
from stepwell.pool.schema import annotations, groups, steps, trajectories
from stepwell.types import Verdict

Doubles = npt.NDArray[np.float64]
_MOST: Final = 100
"""Origins that are told apart, and reasons of each kind."""
_SESSIONS: Final = 20
_OPEN: Final = Selection(statuses=("open",), verdicts=get_args(Verdict))
_kinds: Final = (trajectories.c.source, trajectories.c.agent, trajectories.c.channel)
_time = steps.c.created_at
# Percentiles are worked out here: both databases take several times as long for a window function as to send the rows.
_steps = Prepared(
    sa.select(_time, steps.c.latency, steps.c.response_tokens)
    .where(_time >= sa.bindparam("since"), _time < sa.bindparam("until"))
    .order_by(_time)
)


def activity(connection: sa.Connection, since: float | None, until: float, parts: int) -> Activity:
    """See `Pool.activity`."""
    if since is None:
        since = min(_oldest(connection), until)
    return Activity(
        since=since,
        until=until,
        arrivals=tuple(_arrivals(connection, since, until)),
        intervals=tuple(_intervals(connection, since, until, parts)),
        finishes=_finishes(connection, since, until),
        failures=_failures(connection, since, until),
        dropped=_dropped(connection, since, until),
        open=connection.scalar(sa.select(sa.func.count()).where(trajectories.c.status == "open")) or 0,
        sessions=tuple(_sessions(connection)),
    )


def origins(connection: sa.Connection) -> list[Origin]:
    """See `Pool.origins`."""
    rows = connection.execute(sa.select(*_kinds).distinct().order_by(*_kinds))
    return [Origin(source=row.source, agent=row.agent, channel=row.channel) for row in rows]


def _oldest(connection: sa.Connection) -> float:
    first = (connection.scalar(sa.select(sa.func.min(table.c.created_at))) for table in (steps, trajectories))
    return min((at for at in first if at is not None), default=float("inf"))


def _within(table: sa.Table, since: float, until: float) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.created_at >= since, table.c.created_at < until)


def _arrivals(connection: sa.Connection, since: float, until: float) -> list[Arrivals]:
    of, count, total = trajectories.c, sa.func.count, sa.func.sum
    failed = count(sa.case((of.status == "failed", of.cursor)))
    statement = (
        sa.select(*_kinds, count(), failed, total(of.steps), total(of.response_tokens))
        .where(_within(trajectories, since, until))
        .group_by(*_kinds)
        .order_by(count().desc(), *_kinds)
        .limit(_MOST)
    )
    return [
        Arrivals(
            origin=Origin(source=source, agent=agent, channel=channel),
            trajectories=opened,
            failed=lost,
            steps=int(taken),
            response_tokens=int(tokens),
        )
        for source, agent, channel, opened, lost, taken, tokens in connection.execute(statement)
    ]


def _intervals(connection: sa.Connection, since: float, until: float, parts: int) -> list[Interval]:
    width = (until - since) / parts
    rows = _steps.execute(connection, [{"since": since, "until": until}])
    found = np.fromiter(rows, [("at", np.float64), ("latency", np.float64), ("tokens", np.int64)])
    bounds = since + width * np.arange(parts + 1)
    places = np.searchsorted(found["at"], bounds[:-1])
    return [
        _interval(float(start), part["latency"], part["tokens"])
        for start, part in zip(bounds, np.split(found, places[1:]), strict=False)
    ]


def _interval(start: float, latencies: Doubles, tokens: npt.NDArray[np.int64]) -> Interval:
    """The percentiles are at the nearest rank: each is the latency of some step."""
    ranks = [(len(latencies) * percent + 99) // 100 - 1 for percent in (50, 95)]
    p50, p95 = np.partition(latencies, ranks)[ranks].tolist() if len(latencies) else (None, None)
    return Interval(
        start=start, steps=len(latencies), response_tokens=int(tokens.sum()), latency_p50=p50, latency_p95=p95
    )


def _finishes(connection: sa.Connection, since: float, until: float) -> tuple[tuple[str, int], ...]:
    reason = steps.c.finish_reason
    counted = sa.select(reason, sa.func.count()).where(_within(steps, since, until)).group_by(reason).order_by(reason)
    return tuple((found, count) for found, count in connection.execute(counted))


def _failures(connection: sa.Connection, since: float, until: float) -> tuple[tuple[str, int], ...]:
    failed = (
        sa.select(annotations.c.text, sa.func.count())
        .join(trajectories, trajectories.c.end_cursor == annotations.c.cursor)
        .where(trajectories.c.status == "failed", _within(trajectories, since, until))
    )
    return _most(connection, failed, annotations.c.text)


def _dropped(connection: sa.Connection, since: float, until: float) -> tuple[tuple[str, int], ...]:
    given_up = sa.select(groups.c.dropped, sa.func.count()).where(groups.c.dropped != "", _within(groups, since, until))
    return _most(connection, given_up, groups.c.dropped)


def _most(
    connection: sa.Connection, counted: sa.Select[str, int], reason: sa.Column[str]
) -> tuple[tuple[str, int], ...]:
    statement = counted.group_by(reason).order_by(sa.func.count().desc(), reason).limit(_MOST)
    return tuple((why, count) for why, count in connection.execute(statement))


def _sessions(connection: sa.Connection) -> list[Session]:
    newest = listing.page(connection, _OPEN, None, _SESSIONS)
    of = steps.c
    last = sa.select(of.trajectory_cursor, sa.func.max(of.created_at).label("at")).group_by(of.trajectory_cursor)
    cursors = [cursor for cursor, _ in newest]
    found = connection.execute(last.where(of.trajectory_cursor.in_(cursors)))
    times = {row.trajectory_cursor: row.at for row in found}
    return [
        Session(
            info=line.info,
            channel=line.channel,
            steps=line.steps,
            response_tokens=line.response_tokens,
            last_step_at=times.get(cursor),
        )
        for cursor, line in newest
    ]
