"""The dashboard's pages: one file each, one entry each in `PAGES`."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from stepwell.dashboard.pages import (
    collection,
    compare,
    consumption,
    curation,
    datasets,
    experiments,
    optimisation,
    overview,
    representation,
    trajectory,
    update,
)
from stepwell.dashboard.visit import Visit

Build = Callable[[ui.column, Visit, Mapping[str, str]], Awaitable[None]]
"""Fills the column for a visit; the mapping holds what the path's braces stand for."""


@dataclass(frozen=True, slots=True)
class Page:
    """One kind of page."""

    path: str
    """Where it is; a part in braces is given to `build`."""
    name: str
    """As the browser's tab has it, and the navigation."""
    build: Build
    in_navigation: bool = True


PAGES: Final = (
    Page("/", "Overview", overview.build),
    Page("/collection", "Collection", collection.build),
    Page("/representation", "Representation", representation.build),
    Page("/curation", "Curation", curation.build),
    Page("/datasets", "Datasets", datasets.build),
    Page("/optimisation", "Optimisation", optimisation.build),
    Page("/consumption", "Consumption", consumption.build),
    Page("/update/{run}/{policy_version}", "Update", update.build, in_navigation=False),
    Page("/experiments", "Experiments", experiments.build),
    Page("/trajectory/{trajectory_id}", "Trajectory", trajectory.build, in_navigation=False),
    Page("/compare", "Compare", compare.build, in_navigation=False),
)
