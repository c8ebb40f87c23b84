"""Addresses of the dashboard's pages, whatever the names in them are."""

from typing import Final
from urllib.parse import quote, urlencode

FOLDERS: Final = frozenset({".", ".."})
"""Names that browsers take for folders in a path, however they are encoded; a query may hold them."""


def link(path: str, **query: object) -> str:
    """An address on the dashboard."""
    return f"{path}?{urlencode(query)}" if query else path


def trajectory_address(trajectory_id: str, **query: object) -> str:
    """Where a trajectory is shown: on its page, or, if no path can hold its id, where trajectories are judged."""
    if trajectory_id in FOLDERS:
        return link("/curation", tab="judge", at=trajectory_id)
    return link(f"/trajectory/{quote(trajectory_id, safe='')}", **query)


def update_address(run: str, version: int) -> str:
    """Where an update is shown: on its page, or, if no path can hold its run's name, among the run's others."""
    return link("/consumption", runs=run) if run in FOLDERS else f"/update/{quote(run, safe='')}/{version}"
