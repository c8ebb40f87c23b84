"""An MCP server of our own for tests: over stdin and stdout, or over HTTP at the port that is given."""

import asyncio
import os
import sys

from mcp.server import MCPServer

server = MCPServer("capitals")
CAPITALS = {"Quell": "Marn", "Sorrel": "Tibb"}


@server.tool()
def capital(land: str) -> str:
    """Name the capital of a land."""
    if land not in CAPITALS:
        raise ValueError(f"no land {land}")
    return CAPITALS[land]


@server.tool()
def repeat(text: str, times: int = 1) -> str:
    """Say a text again and again."""
    return text * times


@server.tool()
async def sleep() -> str:
    """Never come back."""
    await asyncio.sleep(3600)
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


if len(sys.argv) > 1:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
else:
    server.run("stdio")
