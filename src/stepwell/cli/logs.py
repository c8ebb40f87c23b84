"""Log lines for programs: one JSON object each."""

import json
import logging
import sys
import time
from typing import Literal

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


class JSONFormatter(logging.Formatter):
    """Time, level, logger and message; what a call was about, and a traceback, if there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        moment = f"{self.formatTime(record, '%Y-%m-%dT%H:%M:%S')}.{int(record.msecs):03d}Z"
        line = {
            "time": moment,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "call", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextFormatter(logging.Formatter):
    """For people: what a call was about stands behind the message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or more with a traceback."""
        line = super().format(record)
        call = getattr(record, "call", None)
        return line if call is None else f"{line} " + " ".join(f"{name}={value}" for name, value in call.items())


def set_up(log_format: LogFormat, level: LogLevel) -> None:
    """Write what is of this level or above to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = TextFormatter("%(asctime)s %(name)s %(message)s")
    handler.setFormatter(JSONFormatter() if log_format == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
