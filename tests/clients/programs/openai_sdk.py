"""The openai SDK for Python: a loop with a tool over two questions, the second one streamed."""

import json
import os
import sys
from typing import Any

from openai import OpenAI

MODEL = os.environ["MODEL"]
QUESTIONS = ("Stepwell asks: what is the weather?", "Stepwell asks: and tomorrow?")
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS}
client = OpenAI(max_retries=0)


def chat() -> str:
    messages: list[Any] = [{"role": "system", "content": "You help."}]
    text = ""
    for question, stream in zip(QUESTIONS, (False, True), strict=True):
        messages.append({"role": "user", "content": question})
        while True:
            answer = _chat_streamed(messages) if stream else _chat_whole(messages)
            messages.append(answer)
            for call in answer.tool_calls or ():
                assert json.loads(call.function.arguments)["city"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})
            if not answer.tool_calls:
                text = answer.content
                break
    return text


def _chat_whole(messages: list[Any]) -> Any:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    return client.chat.completions.create(model=MODEL, messages=messages, tools=tools, logprobs=True).choices[0].message


def _chat_streamed(messages: list[Any]) -> Any:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    with client.chat.completions.stream(
        model=MODEL, messages=messages, tools=tools, stream_options={"include_usage": True}
    ) as stream:
        for _ in stream:
            pass
        whole = stream.get_final_completion()
    assert whole.usage.completion_tokens > 0
    return whole.choices[0].message


def responses() -> str:
    tools: Any = [{"type": "function", "strict": False, **FUNCTION}]
    previous, text = None, ""
    for question, stream in zip(QUESTIONS, (False, True), strict=True):
        asked: Any = [{"role": "user", "content": question}]
        while asked:
            more: Any = {"model": MODEL, "input": asked, "tools": tools, "previous_response_id": previous}
            if stream:
                with client.responses.stream(**more) as events:
                    for _ in events:
                        pass
                    answer = events.get_final_response()
            else:
                answer = client.responses.create(**more)
            previous, text = answer.id, answer.output_text
            calls = [item for item in answer.output if item.type == "function_call"]
            asked = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    return text


def completions() -> str:
    client.completions.create(model=MODEL, prompt="The weather in Oslo is", max_tokens=8)
    stream = client.completions.create(model=MODEL, prompt="The weather in Lima is", max_tokens=8, stream=True)
    return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)


print(json.dumps({"chat": chat, "responses": responses, "completions": completions}[sys.argv[1]]()))
