"""Leave out calls of tools that no tool could take."""

from typing import Any, Literal

import msgspec
from pydantic import Field

from stepwell.curation.rules.base import Rule, main_steps
from stepwell.types import Step, Trajectory


class ToolCalls(Rule):
    """Too many tool calls whose arguments are no JSON object, or that call what the request did not offer."""

    use: Literal["tool_calls"] = "tool_calls"
    """Names the rule."""
    max_invalid: int = Field(default=0, ge=0)
    """Invalid calls that a trajectory may have."""

    def refuses(self, trajectory: Trajectory) -> str:
        """See `Rule`."""
        invalid = sum(invalid_calls(step) for step in main_steps(trajectory))
        return "invalid tool calls" if invalid > self.max_invalid else ""


def invalid_calls(step: Step) -> int:
    """Tool calls of the step's answer that no tool could take."""
    offered = _offered(_decoded(step.request))
    return sum(not _valid(call, offered) for call in _calls(_decoded(step.response)))


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _calls(message: Any) -> list[Any]:
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    return calls if isinstance(calls, list) else []


def _offered(request: Any) -> set[str]:
    """Names of the tools in a request of any dialect; empty if it names none."""
    tools = request.get("tools") if isinstance(request, dict) else None
    entries = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    inner = [tool["function"] if isinstance(tool.get("function"), dict) else tool for tool in entries]
    return {tool["name"] for tool in inner if isinstance(tool.get("name"), str)}


def _valid(call: Any, offered: set[str]) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return False
    arguments = function.get("arguments")
    known = not offered or function.get("name") in offered
    return known and isinstance(_decoded(arguments) if isinstance(arguments, str) else arguments, dict)
