"""The short way to the endpoints that agents call: by a table, before the web framework has looked at the request."""

from collections.abc import Awaitable, Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

_TRAJECTORY = "/t/"


class Dispatch:
    """ASGI middleware: a `POST` on a known path goes to its endpoint, everything else to the framework behind.

    The path of a call may begin with `/t/{trajectory}`, which its endpoint finds among the path parameters, as it does
    when the framework's own router has found it.
    """

    def __init__(self, app: ASGIApp, calls: Mapping[str, ASGIApp], others: Mapping[str, ASGIApp]) -> None:
        """Pass to `calls` or `others`, by path, or to `app`."""
        self._app = app
        self._calls = calls
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Pass a request on."""
        endpoint = self._endpoint(scope) if scope["type"] == "http" and scope["method"] == "POST" else None
        return (endpoint or self._app)(scope, receive, send)

    def _endpoint(self, scope: Scope) -> ASGIApp | None:
        path: str = scope["path"]
        parameters = {}
        if path.startswith(_TRAJECTORY):
            trajectory, mark, rest = path.removeprefix(_TRAJECTORY).partition("/")
            if not trajectory:
                return None
            path, parameters = mark + rest, {"trajectory": trajectory}
        endpoint = self._calls.get(path) or (None if parameters else self._others.get(path))
        if endpoint is not None:
            scope["path_params"] = parameters
        return endpoint
