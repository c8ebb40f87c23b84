"""What of a response's request its answer depends on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell.gateway.dialects.base import ChatCall


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """`ChatCall.kept` of this dialect."""

    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request that the answer repeats."""
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """Tool's name as the policy sees it -> namespace in which the client offered it."""
    summary: bool = False
    """Reasoning is sent as its summary, because the client asked for one; else as what it is."""
    encrypted: bool = False
    """The client wants reasoning also in the form that it will send back."""


def kept_of(call: ChatCall) -> Kept:
    """What was kept of a call."""
    return call.kept if isinstance(call.kept, Kept) else Kept()
