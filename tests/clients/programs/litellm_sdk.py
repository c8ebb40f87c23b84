"""litellm: a loop with a tool, not streamed, then a second question, streamed."""

import json
import os
import sys
from typing import Any

import litellm

MODEL = f"{ {'chat': 'openai', 'messages': 'anthropic'}[sys.argv[1]] }/{os.environ['MODEL']}"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather.", "parameters": PARAMETERS}}]


def answer(messages: list[Any], stream: bool) -> Any:
    result: Any = litellm.completion(model=MODEL, messages=messages, tools=TOOLS, max_tokens=200, stream=stream)
    if stream:
        result = litellm.stream_chunk_builder(list(result), messages=messages)
    return result.choices[0].message


messages: list[Any] = [{"role": "system", "content": "You help."}]
for question, stream in (("Stepwell asks: what is the weather?", False), ("Stepwell asks: and tomorrow?", True)):
    messages.append({"role": "user", "content": question})
    while messages[-1]["role"] != "assistant":
        message = answer(messages, stream)
        messages.append(message.model_dump())
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
print(json.dumps(messages[-1]["content"]))
