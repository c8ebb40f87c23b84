"""Who may do what: one door in front of every route, closed unless a rule opens it.

Without keys (only on loopback) everybody may do everything. With keys, each request needs one that has the scope of its
route; a browser that looks at the dashboard is asked for it by a form (`login`), or sends it as the password of HTTP's
basic authentication.
"""

import base64
import binascii
import re
from collections.abc import Awaitable
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.errors import Forbidden, StepwellError, Unauthorized
from stepwell.gateway.callers import key_of
from stepwell.gateway.dialects import COUNTS, DIALECTS
from stepwell.gateway.dialects.base import Dialect
from stepwell.gateway.dialects.chat import Tokenize
from stepwell.gateway.dialects.messages import CountTokens
from stepwell.gateway.keys import KeyRing, Principal
from stepwell.gateway.keys import Scope as KeyScope
from stepwell.gateway.login import LOGIN, LOGOUT, Login, key_of_browser, wants_page, way_in
from stepwell.gateway.problems import problem_json, problem_of

_BASE: Final = re.compile(r"(?:/t/[^/]+)?(?:/v1){0,2}(?=/|$)")
_OPEN: Final = ("/health", "/ready", "/favicon.ico")
_PROBE: Final = "/api/hello"
_AGENT: Final = frozenset(
    [*(dialect.path for dialect in DIALECTS), *(door.path for door in COUNTS), "/embeddings", "/models"]
)
_WRITES: Final = ("steps", "trajectories", "groups", "rewards", "curation", "events", "feedback", "sessions")
EVERYBODY: Final = Principal(name="", scopes=frozenset({"admin"}))
"""Who calls a gateway that has no keys."""


def needed_scope(method: str, path: str) -> KeyScope | None:
    """The scope that a request needs; None: none."""
    base = _BASE.match(path)
    rest = path[base.end() :] if base else path
    if path in _OPEN or rest == _PROBE or method == "OPTIONS" or (method == "HEAD" and rest in ("", "/")):
        return None
    if rest in _AGENT or rest.startswith("/models/"):
        return "agent"
    if path.startswith("/v1/admin/"):
        return "admin"
    parts = path.split("/")
    if method == "POST" and len(parts) > 2 and parts[1] == "v1" and parts[2] in _WRITES:
        return "ingest"
    return "trainer"


class Guard:
    """ASGI middleware; the principal is in the request's state afterwards."""

    def __init__(self, app: ASGIApp, keys: KeyRing | None) -> None:
        """Let through to `app` whom `keys` know; None: everybody."""
        self._app = app
        self._keys = keys
        self._login = Login(keys) if keys is not None else None

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass the request on, or refuse it."""
        if scope["type"] in ("http", "websocket"):
            if self._login is not None and scope["path"] in (LOGIN, LOGOUT):
                return self._login(scope, receive, send)
            try:
                principal = self._admitted(scope)
            except Unauthorized as error:
                if wants_page(scope, Headers(scope=scope)):
                    return way_in(scope["path"], scope["query_string"])(scope, receive, send)
                return _refuse(scope, send, error)
            except StepwellError as error:
                return _refuse(scope, send, error)
            scope.setdefault("state", {})["principal"] = principal
            if scope["type"] == "websocket" and self._keys is not None:
                receive = self._while_admitted(scope, receive)
        return self._app(scope, receive, send)

    def _while_admitted(self, scope: Scope, receive: Receive) -> Receive:
        """A websocket outlives the request that opened it: nothing is heard of one whose key was revoked meanwhile."""

        async def receive_while_admitted() -> Message:
            message = await receive()
            try:
                self._admitted(scope)
            except StepwellError as error:
                return {"type": "websocket.disconnect", "code": 1008, "reason": str(error)}
            return message

        return receive_while_admitted

    def _admitted(self, scope: Scope) -> Principal:
        if self._keys is None:
            return EVERYBODY
        path: str = scope["path"]
        needed = needed_scope(scope.get("method", "GET"), path)
        if needed is None:
            return Principal(name="", scopes=frozenset())
        headers = Headers(scope=scope)
        principal = self._keys.principal(key_of(headers) or _password(headers) or key_of_browser(scope, headers))
        if principal is None:
            raise Unauthorized("this gateway needs an API key; `stepwell keys create` makes one")
        if not principal.may(needed):
            raise Forbidden(f"the key {principal.name!r} lacks the scope {needed!r}, which {path} needs")
        bound = principal.trajectory_id
        if bound is not None and path.startswith("/t/") and path.split("/")[2] != bound:
            raise Forbidden(f"this key belongs to the trajectory {bound!r}; it cannot call in another")
        return principal


def _password(headers: Headers) -> str:
    """The password of basic authentication; empty without one."""
    kind, _, text = headers.get("authorization", "").partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(text, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


async def _refuse(scope: Scope, send: Send, error: StepwellError) -> None:
    problem = problem_of(error)
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": problem.message})
        return
    doors: tuple[CountTokens | Tokenize | Dialect, ...] = (*COUNTS, *DIALECTS)
    dialect = next((dialect for dialect in doors if scope["path"].endswith(dialect.path)), None)
    body = dialect.problem(problem) if dialect else problem_json(problem)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if problem.status == 401:
        headers.append((b"www-authenticate", b'Basic realm="Stepwell", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
