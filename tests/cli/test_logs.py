"""Log lines: one JSON object each for programs, one line each for people."""

import json
import logging
import sys

import pytest

from stepwell.cli.logs import JSONFormatter, TextFormatter

CALL = {"dialect": "chat", "outcome": "ok", "ms": 12.5, "trajectory": "t", "step": "s"}


def record(message: str, **more: object) -> logging.LogRecord:
    line = logging.LogRecord("stepwell.calls", logging.INFO, "", 0, message, None, None)
    line.__dict__.update(more)
    return line


@pytest.mark.parametrize("message", ["plain", 'two\nlines and "quotes"', "naïve \ud83d"])
def test_a_json_line_is_one_object_on_one_line_whatever_the_message(message: str) -> None:
    line = JSONFormatter().format(record(message))
    assert "\n" not in line
    assert json.loads(line.encode("utf-8", "backslashreplace"))["message"] == message


def test_times_are_utc() -> None:
    line = JSONFormatter().format(record("x", created=0.25, msecs=250.0))
    assert json.loads(line)["time"] == "1970-01-01T00:00:00.250Z"


def test_what_a_call_was_about_stands_beside_the_message() -> None:
    line = json.loads(JSONFormatter().format(record("call answered", call=CALL)))
    assert line.items() >= {**CALL, "level": "info", "logger": "stepwell.calls", "message": "call answered"}.items()
    text = TextFormatter("%(name)s %(message)s").format(record("call answered", call=CALL))
    assert text == "stepwell.calls call answered dialect=chat outcome=ok ms=12.5 trajectory=t step=s"


def test_a_failure_has_its_traceback() -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        failed = record("it failed", exc_info=sys.exc_info())
    assert json.loads(JSONFormatter().format(failed))["traceback"].endswith("ValueError: odd")
