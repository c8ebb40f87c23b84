"""The anthropic SDK for Python: a loop with a tool over two questions, the second one streamed, and a token count."""

import json
import os
from typing import Any

from anthropic import Anthropic

MODEL = os.environ["MODEL"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "get_weather", "description": "The weather of a city.", "input_schema": SCHEMA}]
client = Anthropic(max_retries=0)


def answer(messages: list[Any], stream: bool) -> Any:
    more: Any = {"model": MODEL, "max_tokens": 200, "messages": messages, "tools": TOOLS, "system": "You help."}
    if not stream:
        return client.messages.create(**more)
    with client.messages.stream(**more) as events:
        for _ in events:
            pass
        return events.get_final_message()


messages: list[Any] = []
content: list[Any] = []
for question, stream in (("Stepwell asks: what is the weather?", False), ("Stepwell asks: and tomorrow?", True)):
    messages.append({"role": "user", "content": question})
    assert client.messages.count_tokens(model=MODEL, messages=messages, tools=TOOLS).input_tokens > 0
    while messages[-1]["role"] == "user":
        content = answer(messages, stream).content
        messages.append({"role": "assistant", "content": content})
        calls = [block for block in content if block.type == "tool_use"]
        if calls:
            assert all(call.input["city"] for call in calls)
            results = [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"} for call in calls]
            messages.append({"role": "user", "content": results})
print(json.dumps("".join(block.text for block in content)))
