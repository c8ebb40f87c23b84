"""What the first page shows: the five stages in figures, what needs a person, and the newest trajectories."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from typing import Final, get_args
from urllib.parse import urlencode

from stepwell.curation.selection import Selection
from stepwell.dashboard.addresses import update_address
from stepwell.dashboard.reading.drift import DriftLog
from stepwell.dashboard.reading.updates import UpdateLog, finite, measured
from stepwell.errors import NoProducer
from stepwell.pool.activity import Activity
from stepwell.pool.base import Pool, PoolStats, TrajectorySummary
from stepwell.pool.fidelity import Fidelity
from stepwell.pool.lease import Consumption, HeldLease
from stepwell.types import Verdict

NEWEST: Final = 20
"""Trajectories that the overview lists."""

_LONG: Final = 3600.0
"""Seconds in which a failure is news, and after which an open trajectory is a question."""
_PARTS: Final = 4
LATELY: Final = _LONG / _PARTS
"""Seconds over which rates are taken."""
_EVERY: Final = get_args(Verdict)
_NAMED: Final = 5
"""Metrics of an update that are named."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One of the five stages."""

    name: str
    path: str
    figure: str
    unit: str
    """What the figure counts."""
    details: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should look at."""

    what: str
    path: str
    """Of the page where one can."""
    urgent: bool
    """Whether it stops or spoils training."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The first page."""

    stats: PoolStats
    stages: tuple[Stage, ...]
    problems: tuple[Problem, ...]
    """The urgent ones first."""
    newest: tuple[TrajectorySummary, ...]
    """At most `NEWEST`, newest first."""


def read_overview(pool: Pool, log: UpdateLog, drift_log: DriftLog, now: float | None = None) -> Overview:
    """Everything, as of `now`, a Unix time in seconds; None: this moment. Brings both logs up to date.

    Raises PoolError.
    """
    log.read(pool)
    now = time.time() if now is None else now
    stats, drift = pool.stats(), drift_log.read(pool)
    consumers, held = pool.consumption(), pool.held()
    lately = pool.activity(now - _LONG, now, parts=_PARTS)
    problems = [
        *_missing_producers(pool, consumers),
        *_expired(held, now),
        *_groups(pool, stats),
        *_diverged(log),
        *_failures(lately),
        *_drifting(drift),
        *_lingering(pool, now),
        *_unrewarded(stats),
    ]
    return Overview(
        stats=stats,
        stages=(
            _collection(pool, stats, lately),
            _representation(stats, drift),
            _curation(pool),
            _optimisation(stats, log),
            _consumption(stats, consumers),
        ),
        problems=tuple(sorted(problems, key=lambda problem: not problem.urgent)),
        newest=tuple(summary for _, summary in pool.trajectories(limit=NEWEST)),
    )


def _collection(pool: Pool, stats: PoolStats, lately: Activity) -> Stage:
    newest = lately.intervals[-1]
    opened = pool.count(Selection(verdicts=_EVERY, created_after=newest.start, created_before=lately.until))
    rate = f"{newest.steps / (LATELY / 60):,.1f} steps a minute lately"
    return Stage(
        "Collection",
        "/collection",
        f"{stats.trajectories:,}",
        "trajectories",
        (rate, f"{opened:,} opened in 15 minutes", f"{lately.open:,} open now"),
    )


def _representation(stats: PoolStats, drift: list[Fidelity]) -> Stage:
    steps = sum(line.steps for line in drift)
    forked = sum(line.template + line.tokenizer for line in drift)
    share = f"{forked / steps:.1%} of calls drifted" if steps else "no calls through a gateway"
    tokens = f"{stats.response_tokens:,} tokens sampled"
    return Stage("Representation", "/representation", f"{stats.steps:,}", "steps", (tokens, share))


def _curation(pool: Pool) -> Stage:
    accepted, rejected = (pool.count(Selection(verdicts=(verdict,))) for verdict in ("accept", "reject"))
    saved, datasets = len(pool.selections()), len({info.name for info in pool.datasets()})
    return Stage(
        "Curation",
        "/curation",
        f"{accepted + rejected:,}",
        "verdicts",
        (f"{accepted:,} accepted, {rejected:,} rejected", f"{saved:,} selections, {datasets:,} datasets"),
    )


def _optimisation(stats: PoolStats, log: UpdateLog) -> Stage:
    ratio = next((finite(update).get("tree_ratio") for update in log.newest(1)), None)
    merged = "no update has said yet what merging saved" if ratio is None else f"{ratio:.0%} of tokens computed"
    return Stage("Optimisation", "/optimisation", f"{stats.groups_ready:,}", "groups ready", (merged,))


def _consumption(stats: PoolStats, consumers: list[Consumption]) -> Stage:
    held = sum(consumer.held for consumer in consumers)
    names = len({consumer.consumer for consumer in consumers})
    return Stage(
        "Consumption",
        "/consumption",
        f"{stats.policy_version:,}",
        "policy version",
        (_counted(stats.updates, "update"), f"{_counted(names, 'consumer')}, {_counted(held, 'unit')} held"),
    )


def _counted(count: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {what if count == 1 else plural}"


def _missing_producers(pool: Pool, consumers: list[Consumption]) -> Iterator[Problem]:
    for consumer in sorted({consumer.consumer for consumer in consumers}):
        try:
            pool.require_producer(consumer)
        except NoProducer as error:
            yield Problem(f"Nothing new will come: {error}", "/consumption", urgent=True)
            return


def _expired(held: list[HeldLease], now: float) -> Iterator[Problem]:
    for lease in held:
        if lease.expires_at < now:
            yield Problem(
                f"The lease of {lease.consumer!r} on {lease.units:,} units has expired: did it die?",
                "/consumption",
                urgent=True,
            )


def _groups(pool: Pool, stats: PoolStats) -> Iterator[Problem]:
    stuck = pool.refills()
    if stuck:
        lacking = sum(refill.missing for refill in stuck)
        first = f"/representation?{urlencode({'group_ids': stuck[0].group_id})}"
        yield Problem(
            f"{_counted(len(stuck), 'group')} cannot become ready, for lack of {_counted(lacking, 'trajectory')}. "
            f"The first is {stuck[0].group_id!r}",
            first,
            urgent=True,
        )
    if stats.groups_dropped:
        reasons = ", ".join(f"{reason} ({count:,})" for reason, count in stats.groups_dropped[:3])
        yield Problem(f"Groups were dropped: {reasons}", "/consumption", urgent=False)


def _diverged(log: UpdateLog) -> Iterator[Problem]:
    for run in log.runs:
        newest = log.of(run)[-1]
        lost = sorted(measured(newest).keys() - finite(newest).keys())
        if lost:
            more = f" and {len(lost) - _NAMED:,} more" if len(lost) > _NAMED else ""
            what = "NaN" if any(isnan(measured(newest)[name]) for name in lost) else "∞"
            yield Problem(
                f"The newest update of {run!r} measured {what} for {', '.join(lost[:_NAMED])}{more}",
                update_address(run, newest.policy_version),
                urgent=True,
            )


def _failures(lately: Activity) -> Iterator[Problem]:
    if lately.failures:
        why, most = lately.failures[0]
        total = sum(count for _, count in lately.failures)
        of_them = "" if most == total else f", {most:,} of them"
        failed = f"{_counted(total, 'trajectory')} failed in the last hour"
        said = f"{failed}{of_them}: {why or 'no reason given'}"
        yield Problem(said, "/collection", urgent=True)


def _drifting(drift: list[Fidelity]) -> Iterator[Problem]:
    for line in drift:
        if line.drift > 0:
            who = f"{line.model} with {line.agent}" if line.agent else line.model
            yield Problem(
                f"{line.template + line.tokenizer:,} calls of {who} do not go on from what was sampled: "
                f"{line.drift:.1%} of those that should",
                "/optimisation",
                urgent=line.tokenizer > 0,
            )


def _lingering(pool: Pool, now: float) -> Iterator[Problem]:
    old = Selection(statuses=("open",), verdicts=_EVERY, created_before=now - _LONG)
    if count := pool.count(old):
        said = f"Open for over an hour: {_counted(count, 'trajectory')}"
        yield Problem(said, "/collection", urgent=False)


def _unrewarded(stats: PoolStats) -> Iterator[Problem]:
    by_status = dict(stats.trajectories_by_status)
    ended = by_status.get("terminated", 0) + by_status.get("truncated", 0)
    if (missing := ended - stats.trajectories_rewarded) > 0:
        yield Problem(
            f"{missing:,} of {ended:,} trajectories that ended have no reward, so nobody trains on them",
            "/representation?statuses=terminated",
            urgent=False,
        )
