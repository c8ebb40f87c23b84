"""Who consumes the pool: what each holds, has learnt from and was never given, and what training made of it."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final

from nicegui import ui

from stepwell.dashboard.addresses import update_address
from stepwell.dashboard.frame import follow
from stepwell.dashboard.learning import LearningCurves
from stepwell.dashboard.reading.consumption import Consumers, read_consumers
from stepwell.dashboard.reading.updates import UpdateLog, measured
from stepwell.dashboard.tables import Table, number, text
from stepwell.dashboard.visit import Visit
from stepwell.dashboard.widgets import heading
from stepwell.errors import PoolError
from stepwell.pool.lease import Consumption, HeldLease
from stepwell.types import UpdateInfo

REFRESH: Final = 2.0
"""Seconds between two looks at leases, which the pool's cursor does not tell of."""
_NEWEST: Final = 500
"""Updates that are listed."""

_EMPTY: Final = """\
Nobody has consumed anything yet. `stepwell train RECIPE` trains on what its rollouts bring; any program leases ready \
groups with `stepwell.Client(URL).lease(...)`, or as batches for veRL and TRL.
"""

_CONSUMERS: Final = (
    text("consumer", "Consumer"),
    number("epoch", "Epoch"),
    number("held", "Units held"),
    number("acknowledged", "Acknowledged"),
    number("steps", "Their steps"),
    number("tokens", "Their tokens"),
    text("dropped", "Never handed over, and why"),
)
_LEASES: Final = (
    text("consumer", "Consumer"),
    number("epoch", "Epoch"),
    number("units", "Units"),
    number("steps", "Steps"),
    number("tokens", "Tokens"),
    text("expires", "Expires"),
    text("id", "Lease"),
)
_UPDATES: Final = (
    number("version", "Version made"),
    text("run", "Run"),
    text("at", "Published"),
    number("reward", "Mean reward", 3),
    number("steps", "Steps trained on"),
    number("tokens", "Tokens"),
    number("staleness", "Mean staleness", 2),
    number("oldest", "Oldest"),
    number("publish", "Seconds to publish", 2),
)


async def build(parent: ui.column, visit: Visit, _: Mapping[str, str]) -> None:
    """The page."""
    with parent:
        view = ConsumptionView(visit)
        log = UpdateLog()

        async def show() -> None:
            if await asyncio.to_thread(log.read, visit.pool) or not log.runs:
                view.show_updates(log)

        async def look() -> None:
            try:
                view.show_consumers(await asyncio.to_thread(read_consumers, visit.pool))
            except PoolError:  # `follow` says so, and tries again too
                return

        await look()
        await follow(visit, show)
        ui.timer(REFRESH, look, immediate=False)


class ConsumptionView:
    """The widgets of the page; they are filled in place."""

    def __init__(self, visit: Visit) -> None:
        """Build them, empty."""
        self._visit = visit
        self._consumed = self._trained = False
        self._empty = ui.card().classes("w-full")
        with self._empty:
            ui.markdown(_EMPTY)
        with ui.card().classes("w-full") as self._consumers_card:
            heading("Consumers")
            self._consumers = Table(_CONSUMERS, key="key", label="Consumers")
        with ui.card().classes("w-full") as self._held_card:
            heading("Leases held now")
            self._held = Table(_LEASES, key="id", label="Leases held now")
        with ui.card().classes("w-full") as self._curves_card:
            heading("Learning curves")
            self._curves = LearningCurves(visit.query, self._remember)
        with ui.card().classes("w-full") as self._updates_card:
            self._count = heading("Updates")
            self._updates = Table(_UPDATES, key="key", label="Updates")
        self._show_cards()

    def show_consumers(self, read: Consumers) -> None:
        """Fill in who consumes."""
        self._consumed = bool(read.consumers)
        self._consumers.fill([_consumer(one) for one in read.consumers])
        self._held.fill([_lease(one, self._visit) for one in read.held])
        self._held_card.set_visibility(bool(read.held))
        self._show_cards()

    def show_updates(self, log: UpdateLog) -> None:
        """Fill in what was trained."""
        self._trained = bool(log.runs)
        newest = log.newest(_NEWEST)
        self._count.text = f"The newest {_NEWEST} updates" if len(newest) == _NEWEST else "Updates"
        self._updates.fill([_update(update, self._visit) for update in newest])
        self._curves.show(log)
        self._show_cards()

    def _show_cards(self) -> None:
        self._empty.set_visibility(not (self._consumed or self._trained))
        self._consumers_card.set_visibility(self._consumed)
        self._curves_card.set_visibility(self._trained)
        self._updates_card.set_visibility(self._trained)

    def _remember(self) -> None:
        self._visit.remember(**self._curves.state)


def _consumer(one: Consumption) -> dict[str, object]:
    return {
        "key": f"{one.consumer}/{one.epoch}",
        "consumer": one.consumer,
        "epoch": one.epoch,
        "held": one.held,
        "acknowledged": one.acknowledged,
        "steps": one.steps,
        "tokens": one.tokens,
        "dropped": ", ".join(f"{units:,} {reason}" for reason, units in one.dropped) or "none",
    }


def _lease(one: HeldLease, visit: Visit) -> dict[str, object]:
    left = one.expires_at - time.time()
    when = f"in {_span(left)}" if left > 0 else f"expired {_span(-left)} ago"
    return {
        "id": one.id,
        "consumer": one.consumer,
        "epoch": one.epoch,
        "units": one.units,
        "steps": one.steps,
        "tokens": one.tokens,
        "expires": f"{visit.time(one.expires_at)} ({when})",
    }


def _span(seconds: float) -> str:
    for size, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


def _update(update: UpdateInfo, visit: Visit) -> dict[str, object]:
    metrics = measured(update)
    return {
        "key": f"{update.run}/{update.policy_version}",
        "version": update.policy_version,
        "version_href": update_address(update.run, update.policy_version),
        "run": update.run,
        "at": visit.time(update.created_at),
        "reward": metrics.get("reward_mean"),
        "steps": metrics.get("trained_steps"),
        "tokens": metrics.get("trained_tokens"),
        "staleness": metrics.get("staleness_mean"),
        "oldest": metrics.get("staleness_max"),
        "publish": metrics.get("seconds_publish"),
    }
