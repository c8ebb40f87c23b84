"""Leases as they are asked for and as they come: pure functions, shared by all clients."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypedDict, Unpack
from urllib.parse import quote

from pydantic import ValidationError

from stepwell.client.requests import Answer, Call, done, trajectory_of
from stepwell.curation.selection import Selection
from stepwell.errors import InvalidRequest, Unavailable
from stepwell.pool.arrays import StepArrays, from_msgpack
from stepwell.pool.lease import Lease as Units
from stepwell.pool.lease import LeaseSpec, Order, Unit
from stepwell.types import Group, GroupInfo

_TURN: Final = 20.0
"""Seconds that one request waits at most: shorter than what proxies bear, and than what the gateway allows."""
_MSGPACK: Final = "application/msgpack"
_LONGEST_REASON: Final = 2000


class Wanted(TypedDict, total=False):
    """What else a lease may ask for: the fields of `LeaseSpec`, where each is explained with its default."""

    epoch: int
    unit: Unit
    selection: Selection | str
    dataset: str
    order: Order
    seed: int
    limit: int
    max_steps: int | None
    max_tokens: int | None
    max_staleness: int | None
    policy_version: int | None
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A lease as the gateway made it."""

    id: str
    expires_at: float
    arrays: StepArrays


class Held:
    """Units that a consumer holds, as arrays; what both kinds of lease have in common."""

    def __init__(self, handed: Handed) -> None:
        """Held from now on."""
        self.id: Final = handed.id
        self.arrays: Final = handed.arrays
        """All steps of the units; names, shapes and dtypes are those of `stepwell.pool.arrays.StepArrays`."""
        self.expires_at = handed.expires_at
        """Unix time in seconds after which the units may be handed over again."""
        self.settled = False
        """Whether it is acknowledged or given back."""

    def __len__(self) -> int:
        """Number of units; 0, and so false, if there was nothing."""
        return len(self.arrays.group_ids)


def turns(consumer: str, wait: float, **wanted: Unpack[Wanted]) -> Iterator[LeaseSpec]:
    """`turned`, of a request in keywords.

    Raises:
        InvalidRequest: a value makes no sense.
    """
    if not wait >= 0:
        raise InvalidRequest(f"wait must be at least 0 seconds, got {wait}")
    try:
        spec = LeaseSpec(consumer=consumer, **wanted)
    except ValidationError as error:
        raise InvalidRequest(f"no such lease can be asked for: {error}") from error
    return turned(spec, wait)


def turned(spec: LeaseSpec, wait: float) -> Iterator[LeaseSpec]:
    """What to ask for, again while the answer is empty, until `wait` seconds (maybe infinitely many) are over."""
    until = time.monotonic() + wait
    left = wait
    while True:
        yield spec.model_copy(update={"wait": max(0.0, min(left, _TURN))})
        left = until - time.monotonic()
        if left <= 0:
            return


def arrays(spec: LeaseSpec) -> Call[Handed]:
    """Lease, and get arrays."""
    return Call(path="/v1/leases", body=_body(spec), accept=_MSGPACK, wait=spec.wait, read=_handed)


def units(spec: LeaseSpec) -> Call[Units]:
    """Lease, and get whole records."""
    return Call(path="/v1/leases", body=_body(spec), wait=spec.wait, read=_units)


def ack(lease_id: str) -> Call[None]:
    """The units of a lease are consumed."""
    return Call(path=_lease(lease_id, "ack"), read=done)


def nack(lease_id: str, reason: str) -> Call[None]:
    """Give the units of a lease back."""
    said = reason.encode(errors="replace").decode()[:_LONGEST_REASON]
    return Call(path=_lease(lease_id, "nack"), body=json.dumps({"reason": said}).encode(), read=done)


def drop_group(group_id: str, reason: str) -> Call[None]:
    """Give a group up."""
    said = reason.encode(errors="replace").decode()[:_LONGEST_REASON]
    return Call(
        path=f"/v1/groups/{quote(group_id, safe='')}/drop", body=json.dumps({"reason": said}).encode(), read=done
    )


def nack_all(consumer: str) -> Call[int]:
    """Give back what a consumer holds."""
    body = json.dumps({"consumer": consumer}).encode()
    return Call(path="/v1/leases/nack", body=body, read=lambda answer: answer["released"])


def extend(lease_id: str, seconds: float) -> Call[float]:
    """Hold the units of a lease for longer; gives the Unix time until which."""
    return Call(path=_lease(lease_id, "extend"), body=_seconds(seconds), read=lambda answer: answer["expires_at"])


def heartbeat(producer: str, seconds: float) -> Call[None]:
    """A producer is alive."""
    return Call(path=f"/v1/producers/{quote(producer, safe='')}", body=_seconds(seconds), read=done)


def _body(spec: LeaseSpec) -> bytes:
    return spec.model_dump_json().encode()


def _lease(lease_id: str, what: str) -> str:
    return f"/v1/leases/{quote(lease_id, safe='')}/{what}"


def _seconds(seconds: float) -> bytes:
    return json.dumps({"seconds": seconds}).encode()


def _handed(answer: Answer) -> Handed:
    try:
        held, until = answer.headers["x-stepwell-lease"], float(answer.headers["x-stepwell-expires-at"])
    except (KeyError, ValueError) as error:
        raise Unavailable("the answer does not say which lease it is: no gateway?") from error
    return Handed(id=held, expires_at=until, arrays=from_msgpack(answer.body))


def _units(answer: Mapping[str, Any]) -> Units:
    members = [tuple(map(trajectory_of, group["trajectories"])) for group in answer["groups"]]
    infos = [GroupInfo(**group["info"]) for group in answer["groups"]]
    found = tuple(Group(info=info, trajectories=own) for info, own in zip(infos, members, strict=True))
    return Units(id=answer["id"], consumer=answer["consumer"], groups=found, expires_at=answer["expires_at"])
