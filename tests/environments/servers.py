"""Servers of our own that tests talk to: each is started once, on loopback, and ended with the process of the tests."""

import atexit
import functools
import importlib
import importlib.util
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

MCP_SERVER = Path(__file__).with_name("mcp_server.py")


@functools.cache
def mcp_url() -> str:
    """An MCP server over HTTP. Raises ImportError if the package is missing."""
    if importlib.util.find_spec("mcp") is None:
        raise ImportError("MCP tools need: pip install 'stepwell[mcp]'")
    port = free_port()
    process = subprocess.Popen([sys.executable, str(MCP_SERVER), str(port)], stderr=subprocess.DEVNULL)
    atexit.register(process.kill)
    _wait(port)
    return f"http://127.0.0.1:{port}/mcp"


@functools.cache
def openenv_url() -> str:
    """An OpenEnv server. Raises ImportError if the package is missing."""
    if importlib.util.find_spec("openenv") is None:
        raise ImportError("the tests of OpenEnv need: pip install openenv")
    return serve(importlib.import_module("tests.environments.openenv_server").app)


def serve(app: Any) -> str:
    """An ASGI application in a thread; the URL without a path."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    _wait(port)
    return f"http://127.0.0.1:{port}"


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(port: int) -> None:
    for _ in range(600):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens at port {port}")
