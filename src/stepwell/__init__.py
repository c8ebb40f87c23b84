"""Stepwell: reinforcement learning of LLM agents with the interaction step as its unit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepwell.client.aio import AsyncClient, AsyncSession
    from stepwell.client.aio_consumer import AsyncLease
    from stepwell.client.consumer import Lease
    from stepwell.client.requests import Event, Feedback
    from stepwell.client.sync import Client, Session

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncSession",
    "Client",
    "Event",
    "Feedback",
    "Lease",
    "Session",
    "__version__",
]
__version__ = "0.1.0"

_HOMES = {
    "Client": "sync",
    "Session": "sync",
    "Lease": "consumer",
    "AsyncClient": "aio",
    "AsyncSession": "aio",
    "AsyncLease": "aio_consumer",
}


def __getattr__(name: str) -> object:
    """The client, imported when somebody asks for it: everything else of the package does without."""
    if name in __all__:
        from importlib import import_module  # noqa: PLC0415

        return getattr(import_module(f"stepwell.client.{_HOMES.get(name, 'requests')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
