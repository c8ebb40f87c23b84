"""An agent of the OpenAI Agents SDK, two questions in one session, the second one streamed."""

import asyncio
import json
import os
import sys

from agents import Agent, Runner, SQLiteSession, function_tool, set_default_openai_api, set_tracing_disabled


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


async def main() -> None:
    set_tracing_disabled(True)
    if sys.argv[1] == "chat":
        set_default_openai_api("chat_completions")
    agent = Agent(name="helper", instructions="You help.", tools=[get_weather], model=os.environ["MODEL"])
    session = SQLiteSession("one")
    await Runner.run(agent, "Stepwell asks: what is the weather?", session=session)
    result = Runner.run_streamed(agent, "Stepwell asks: and tomorrow?", session=session)
    async for _ in result.stream_events():
        pass
    print(json.dumps(result.final_output))


asyncio.run(main())
