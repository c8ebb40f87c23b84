"""A browser's way in where the gateway has keys: a form that asks for one, and a cookie that keeps it.

The cookie is the key itself: nothing is stored here, a restarted gateway still knows it, and a key that is revoked soon
lets nobody in. Scripts cannot read it, and other sites' requests do not carry it, unless somebody follows a link to a
page. It opens pages only, no route of the API: a page of another port of this machine is no other site to a browser.
"""

import html
from typing import Final
from urllib.parse import parse_qs, quote

from starlette.datastructures import Headers
from starlette.requests import Request, cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from stepwell.errors import InvalidRequest
from stepwell.gateway.keys import KeyRing
from stepwell.gateway.transport import ClientGone, read_body

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
_COOKIE: Final = "stepwell_key"
_DAYS: Final = 30
_LONGEST: Final = 8_192  # bytes of a form
_API: Final = ("/v1", "/t/", "/metrics")

_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Log in · Stepwell</title>
<style>
:root {{ color-scheme: light dark; font-family: system-ui, sans-serif; }}
main {{ max-width: 24rem; margin: 15vh auto; padding: 0 1rem; }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .5rem; margin-top: .5rem; }}
p[role=alert] {{ color: light-dark(#b00020, #ff8a80); }}
</style>
</head>
<body><main>
<h1>Stepwell</h1>
<form method="post" action="/login?next={next}">
<label>API key with the scope <code>trainer</code> or <code>admin</code>
<input name="key" type="password" autocomplete="current-password" required autofocus></label>
{problem}
<button>Log in</button>
</form>
<p><small><code>stepwell keys create --name you --scope trainer --scope ingest --file FILE</code> makes one in the file
that the gateway was started with; without <code>ingest</code> it can look, and change nothing.</small></p>
</main></body>
</html>"""


class Login:
    """The two paths, as an ASGI application."""

    def __init__(self, keys: KeyRing) -> None:
        """For those whom `keys` know."""
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer."""
        try:
            response = await self._answer(Request(scope, receive))
        except ClientGone:
            return
        except InvalidRequest as error:
            response = Response(str(error), 400, media_type="text/plain")
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        if request.url.path == LOGOUT:
            out = RedirectResponse(LOGIN, 303)
            out.delete_cookie(_COOKIE)
            return out
        target = _own(request.query_params.get("next", "/"))
        if request.method != "POST":
            known = self._keys.principal(request.cookies.get(_COOKIE, ""))
            return RedirectResponse(target, 303) if known and known.may("trainer") else _form(target)
        fields = parse_qs((await read_body(request, _LONGEST)).decode(errors="replace"))
        key = fields.get("key", [""])[0].strip()
        principal = self._keys.principal(key)
        if principal is None:
            return _form(target, "No such key.")
        if not principal.may("trainer"):
            return _form(target, f"The key {principal.name!r} lacks the scope trainer, which pages need.")
        inside = RedirectResponse(target, 303)
        inside.set_cookie(
            _COOKIE,
            key,
            max_age=_DAYS * 86_400,
            httponly=True,
            samesite="lax",
            secure=request.url.scheme == "https",
        )
        return inside


def key_of_browser(scope: Scope, headers: Headers) -> str:
    """The key that a browser keeps, where it counts: for pages, and for what they exchange with their own server."""
    if scope["path"].startswith(_API):
        return ""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return ""
    return cookie_parser(headers.get("cookie", "")).get(_COOKIE, "")


def wants_page(scope: Scope, headers: Headers) -> bool:
    """Whether a person is looking at what is answered."""
    return scope.get("method") == "GET" and "text/html" in headers.get("accept", "")


def way_in(path: str, query: bytes) -> Response:
    """To the form, and from there back to what was asked for."""
    asked = path + (f"?{query.decode('latin-1')}" if query else "")
    return RedirectResponse(f"{LOGIN}?next={quote(asked, safe='')}", 303)


def _form(target: str, problem: str = "") -> Response:
    said = f'<p role="alert">{html.escape(problem)}</p>' if problem else ""
    return HTMLResponse(_PAGE.format(next=quote(target, safe=""), problem=said), 401 if problem else 200)


def _own(target: str) -> str:
    """A path of this server; whatever might lead elsewhere becomes the first page."""
    return target if target.startswith("/") and not target.startswith(("//", "/\\")) else "/"
