"""An agent of pydantic-ai: two questions, the second streamed; or, typed, one whose answer is a tool's arguments."""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent

PROVIDERS = {"chat": "openai-chat", "responses": "openai-responses", "messages": "anthropic"}


class Report(BaseModel):
    city: str
    degrees: int


def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def main(kind: str) -> None:
    model: Any = f"{PROVIDERS[kind]}:{os.environ['MODEL']}"
    if "typed" in sys.argv:
        typed = Agent(model, instructions="You help.", output_type=Report, tools=[get_weather])
        print((await typed.run("Stepwell asks: what is the weather?")).output.model_dump_json())
        return
    agent = Agent(model, instructions="You help.", tools=[get_weather])
    first = await agent.run("Stepwell asks: what is the weather?")

    async def watch(_: Any, events: Any) -> None:
        async for _ in events:
            pass

    second = await agent.run(
        "Stepwell asks: and tomorrow?", message_history=first.all_messages(), event_stream_handler=watch
    )
    print(json.dumps(second.output))


asyncio.run(main(sys.argv[1]))
