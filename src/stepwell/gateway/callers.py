"""Who calls: what of a request does not depend on the dialect, and the trajectory that it names.

A trajectory is named, in this order, by the path (`/t/{trajectory}/…`, the one hint that every client keeps), by the
API key (`sw-{trajectory}`, which every client can set), by our headers, or by those that known clients send of
themselves. Calls that name none are told apart by their history (`sessions`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request

from stepwell.errors import InvalidRequest

KEY_PREFIX: Final = "sw-"
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@=+~-]{0,199}")
_OWN_HEADERS: Final = ("x-stepwell-trajectory", "x-trajectory-id")
# Session ids of Claude Code, OpenClaw, Codex and pi, opencode: docs/reference/gateway.md has the table.
_CLIENT_HEADERS: Final = (
    "x-claude-code-session-id",
    "x-openclaw-session-key",
    "session-id",
    "thread-id",
    "x-session-id",
    "x-session-affinity",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who calls."""

    trajectory_id: str | None
    """None: the call names no trajectory."""
    hinted: bool = False
    """Whether that is only the client's own session id, which may outlive the trajectory."""
    confined: bool = False
    """Whether its key is for that trajectory alone, so that it may refer to nothing of another."""
    agent: str
    """First word of the user-agent header."""
    scope: bytes
    """Equal for callers whose histories may continue each other: those with the same key. Not the user-agent: some
    clients change it within one conversation."""
    subagent: str = ""
    """The client's own name of the subagent that calls; empty for its main thread, or if it does not say."""
    retries: bool = False
    """The client says that this is another attempt at the same call."""
    idempotency_key: str = ""
    final_state: bool = False
    """The call only shows the state after the last action; nobody acts on its answer."""


def caller_of(request: Request) -> Caller:
    """Read the caller from path and headers.

    Raises:
        InvalidRequest: the trajectory's id, named by path, key or our header, has characters that are not allowed.
    """
    headers = _first_of_each(request.headers)
    agent = headers.get("user-agent", "").partition(" ")[0][:100]
    key = key_of(headers)
    count = headers.get("x-stainless-retry-count", "0")
    confined = _bound_to(request)
    named = confined or _named(request, key)
    return Caller(
        confined=confined is not None,
        trajectory_id=named or _hinted(headers),
        hinted=named is None,
        agent=agent,
        scope=blake2b(key.encode(), digest_size=16).digest(),
        subagent=headers.get("x-claude-code-agent-id", ""),
        retries=count.isdecimal() and int(count) > 0,
        idempotency_key=headers.get("idempotency-key", ""),
        final_state=headers.get("x-stepwell-side", "") == "state",
    )


def _first_of_each(headers: Headers) -> dict[str, str]:
    """As a dictionary, which is much faster to look things up in; like in Starlette's, the first of a name counts."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(headers.raw)}


def key_of(headers: Mapping[str, str]) -> str:
    """The API key that a call carries, in the header of OpenAI's or of Anthropic's clients; empty without one."""
    bearer = headers.get("authorization", "")
    key = bearer[7:].strip() if bearer[:7].lower() == "bearer " else ""
    return key or headers.get("x-api-key", "").strip()


def _bound_to(request: Request) -> str | None:
    """The trajectory of a signed session key; the guard has compared the path with it."""
    principal = request.scope.get("state", {}).get("principal")
    return None if principal is None else principal.trajectory_id


def _named(request: Request, key: str) -> str | None:
    named: str | None = request.path_params.get("trajectory")
    if named is None and key.startswith(KEY_PREFIX):
        named = key.removeprefix(KEY_PREFIX)
    if named is None:
        named = next((value for name in _OWN_HEADERS if (value := request.headers.get(name)) is not None), None)
    if named is not None and not _ID.fullmatch(named):
        raise InvalidRequest(
            f"trajectory id {named[:200]!r} must be 1 to 200 letters, digits or . _ : @ = + ~ -, "
            "and begin with a letter or digit"
        )
    return named


def _hinted(headers: Mapping[str, str]) -> str | None:
    """A client's own session id, which it did not choose for us: what does not fit is replaced, not refused."""
    hint = next((value for name in _CLIENT_HEADERS if (value := headers.get(name))), None)
    return None if hint is None else trajectory_of_session(hint)


def trajectory_of_session(name: str) -> str:
    """The trajectory of what a client, or a person, calls a session: of that name where an id may be spelt so."""
    if _ID.fullmatch(name):
        return name
    return "session-" + blake2b(name.encode(errors="surrogatepass"), digest_size=12).hexdigest()
