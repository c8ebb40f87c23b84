"""An agent of langchain on langgraph, two questions in one thread, streamed."""

import json
import os
import sys
from typing import Any

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

MODEL = os.environ["MODEL"]


@tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


models: Any = {
    "chat": lambda: ChatOpenAI(model=MODEL),
    "responses": lambda: ChatOpenAI(model=MODEL, use_responses_api=True),
    "messages": lambda: ChatAnthropic(model_name=MODEL, max_tokens_to_sample=256, timeout=None, stop=None),
}
agent = create_agent(models[sys.argv[1]](), [get_weather], system_prompt="You help.", checkpointer=InMemorySaver())
thread: Any = {"configurable": {"thread_id": "one"}}
for question in ("Stepwell asks: what is the weather?", "Stepwell asks: and tomorrow?"):
    for _ in agent.stream({"messages": [{"role": "user", "content": question}]}, thread, stream_mode="messages"):
        pass
print(json.dumps(agent.get_state(thread).values["messages"][-1].text))
