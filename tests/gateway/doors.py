"""The four dialects as tests of the gateway see them: a call that is good, and what an error looks like."""

from dataclasses import dataclass
from typing import Any

import pytest

USER = {"role": "user", "content": "hello"}


@dataclass(frozen=True)
class Door:
    """One dialect."""

    name: str
    path: str
    good: dict[str, Any]
    text: str = "messages"
    """Field that holds what is said."""

    def error(self, response, status: int) -> str:
        """The message of an error answer, whose shape and status are right."""
        assert response.status_code == status, response.text
        body = response.json()
        if self.name == "messages":
            assert set(body) == {"type", "error", "request_id"}
            assert set(body["error"]) == {"type", "message"}
        else:
            assert set(body["error"]) == {"message", "type", "param", "code"}
        return body["error"]["message"]

    def saying(self, said: object) -> dict[str, Any]:
        """The good call with other words."""
        return {**self.good, self.text: said}

    def saying_text(self, text: str) -> dict[str, Any]:
        """The good call of one text."""
        return self.saying([{"role": "user", "content": text}] if self.text == "messages" else text)


CHAT = Door("chat", "/v1/chat/completions", {"model": "tiny", "messages": [USER]})
DOORS = [
    CHAT,
    Door("completions", "/v1/completions", {"model": "tiny", "prompt": "hello"}, "prompt"),
    Door("responses", "/v1/responses", {"model": "tiny", "input": "hello"}, "input"),
    Door("messages", "/v1/messages", {"model": "tiny", "messages": [USER], "max_tokens": 64}),
]
every_door = pytest.mark.parametrize("door", DOORS, ids=lambda door: door.name)
conversations = pytest.mark.parametrize("door", [d for d in DOORS if d.name != "completions"], ids=lambda d: d.name)


def well(http, door: Door = CHAT) -> None:
    """A good call is answered on the same connection, and its step is stored."""
    answer = http.post(door.path, json=door.good)
    assert answer.status_code == 200, answer.text
    assert http.get("/ready").json()["ready"]


def counted(http, door: Door) -> dict[str, float]:
    """How the calls of a dialect ended."""
    lines = [line for line in http.get("/metrics").text.splitlines() if line.startswith("stepwell_calls_total{")]
    mine = [line for line in lines if f'dialect="{door.name}"' in line]
    return {line.split('outcome="')[1].split('"')[0]: float(line.rpartition(" ")[2]) for line in mine}


def asgi_scope(path: str) -> dict[str, Any]:
    """A POST as a server would hand it to the application."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"gateway")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
