"""An agent of smolagents, two questions, streamed or not."""

import json
import os
import sys

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: the city
    """
    return f"sunny in {city}"


model = OpenAIServerModel(model_id=os.environ["MODEL"])
agent = ToolCallingAgent(
    tools=[get_weather], model=model, max_steps=4, stream_outputs="stream" in sys.argv, verbosity_level=0
)
agent.run("Stepwell asks: what is the weather?")
print(json.dumps(str(agent.run("Stepwell asks: and tomorrow?", reset=False))))
