"""A session with an MCP server: its tools as ours, calls of them, and an end that leaves no process behind.

The package `mcp` (MIT) speaks the protocol. Its connections must be closed by the task that opened them, whereas an
episode is begun, played and ended by whoever comes along; so each has a task of its own that holds it open.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

from stepwell.environments.tool_arguments import Misused, untitled
from stepwell.errors import ConfigError, EnvironmentFailed, MissingDependency, StepwellError
from stepwell.rendering.messages import Tool

_INVALID_PARAMS: Final = -32602
"""JSON-RPC's code for arguments that a server does not take."""
_STDERR: Final = 300
"""Characters of what a server says on stderr that are shown when it fails, from the end."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is: a command that is started, or a URL."""

    command: tuple[str, ...] = ()
    url: str | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    """Added to the few that a command inherits (PATH, HOME and such)."""
    folder: Path | None = None
    timeout: float = 30.0
    """Seconds for the beginning, and for each call."""

    @property
    def name(self) -> str:
        """For messages."""
        return self.url or " ".join(self.command)


class Session:
    """One connection. For a command, that is a process of its own."""

    def __init__(self, server: Server) -> None:
        """Nothing is started before `open`."""
        self._server = server
        self._holder: asyncio.Task[None] | None = None
        self._client: Any = None
        self._closing = asyncio.Event()
        self.tools: Mapping[str, Tool] = {}
        """By name, as the server lists them."""

    async def open(self) -> None:
        """Start the server or reach it, and ask for its tools.

        Raises:
            MissingDependency: the package `mcp` is not installed.
            EnvironmentFailed: the server does not start, is not there, or does not answer.
        """
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(ready), name=f"mcp {self._server.name}")
        try:
            async with asyncio.timeout(self._server.timeout):
                await ready
        except TimeoutError as error:
            await self.close()
            raise EnvironmentFailed(f"{self._server.name} did not begin within {self._server.timeout} s") from error
        except BaseException:
            await self.close()
            raise

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The text of a tool's answer; one that reports a mistake begins with `Error: `.

        Raises:
            Misused: the server does not take the arguments.
            EnvironmentFailed: the server is gone, or does not answer.
        """
        from mcp import MCPError  # noqa: PLC0415  # optional: `stepwell[mcp]`

        call = asyncio.ensure_future(self._client.call_tool(name, dict(arguments)))
        assert self._holder is not None
        try:
            async with asyncio.timeout(self._server.timeout):
                await asyncio.wait({call, self._holder}, return_when=asyncio.FIRST_COMPLETED)
                if not call.done():
                    raise EnvironmentFailed(f"{self._server.name} ended while its tool {name} ran")
                result = call.result()
        except MCPError as error:
            if error.code == _INVALID_PARAMS:
                raise Misused(f"{name} does not take that: {error}") from error
            raise EnvironmentFailed(f"{self._server.name} failed at {name}: {error}") from error
        except TimeoutError as error:
            raise EnvironmentFailed(f"{name} of {self._server.name} took over {self._server.timeout} s") from error
        except StepwellError:
            raise
        except Exception as error:  # a broken connection has many names
            raise EnvironmentFailed(f"{self._server.name} failed at {name}: {error}") from error
        finally:
            call.cancel()
        text = "\n".join(map(_shown, result.content))
        return f"Error: {text}" if result.is_error else text

    async def close(self) -> None:
        """End the connection, and the process with it."""
        holder, self._holder = self._holder, None
        self._closing.set()
        if holder is None:
            return
        if self._client is None:
            holder.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await holder

    async def _hold(self, ready: "asyncio.Future[None]") -> None:
        with tempfile.TemporaryFile("w+", errors="replace") as said:
            try:
                async with _client(self._server, said) as client:
                    self.tools = await _listed(client)
                    self._client = client
                    ready.set_result(None)
                    await self._closing.wait()
            except MissingDependency as error:
                ready.set_exception(error)
            except Exception as error:  # whatever the connection raises ends the session
                if ready.done():
                    return
                what = f"{self._server.name} cannot be used as an MCP server: {_first(error)}"
                ready.set_exception(EnvironmentFailed(f"{what}{_tail(said)}"))


def _client(server: Server, stderr: TextIO) -> Any:
    try:
        import mcp  # noqa: PLC0415  # optional: `stepwell[mcp]`
        from mcp.client.stdio import stdio_client  # noqa: PLC0415
    except ImportError as error:
        raise MissingDependency(f"MCP tools need: pip install 'stepwell[mcp]' ({error})") from error
    if not hasattr(mcp, "Client"):
        raise MissingDependency("MCP tools need version 2 of the package: pip install 'mcp>=2'")
    if server.url is not None:
        return mcp.Client(server.url)
    if not server.command:
        raise ConfigError("an MCP server has a command or a URL")
    program, *arguments = server.command
    parameters = mcp.StdioServerParameters(
        command=program,
        args=arguments,
        env=dict(server.variables),
        cwd=server.folder,
        encoding_error_handler="replace",
    )
    return mcp.Client(stdio_client(parameters, errlog=stderr))


async def _listed(client: Any) -> Mapping[str, Tool]:
    tools: dict[str, Tool] = {}
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        for tool in page.tools:
            schema = {"type": "object", "properties": {}} | untitled(tool.input_schema)
            tools[tool.name] = Tool(name=tool.name, description=tool.description or "", parameters=schema)
        cursor = page.next_cursor
        if not cursor:
            return tools


def _shown(block: Any) -> str:
    """A piece of an answer; of what is no text, its kind."""
    resource = getattr(block, "resource", block)
    text = getattr(resource, "text", None)
    return text if isinstance(text, str) else f"[{block.type}]"


def _first(error: BaseException) -> str:
    """What went wrong first, of a group of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _tail(said: TextIO) -> str:
    said.seek(0)
    text = said.read().strip()
    return f"; it said: {text[-_STDERR:]}" if text else ""
