"""The tokens of an action are those that the parser read it from."""

import json

import numpy as np
import pytest

from stepwell.rendering.actions import action_mask
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rendering.renderer import Renderer
from stepwell.rendering.wire import answer_to_json
from stepwell.types import Step
from tests.fakes.models import tiny_renderer

CALL = '<tool_call>\n{"name": "look", "arguments": {"q": "it"}}\n</tool_call>'
OTHER = CALL.replace("it", "them")


def marked(renderer: Renderer, text: str, calls: int = 0, prefill: str = "") -> str:
    """The text of the tokens that are the action of a reply of `text`, which made so many calls."""
    made = tuple(ToolCall(id=f"c{n}", name="look", arguments=json.dumps({})) for n in range(calls))
    prompt = renderer.encode("<|im_start|>assistant\n" + prefill)
    response = renderer.encode(text + "<|im_end|>")
    step = Step(
        trajectory_id="t",
        index=0,
        prompt_ids=prompt,
        response_ids=response,
        logprobs=np.zeros(len(response)),
        response=answer_to_json(Message(role="assistant", tool_calls=made)),
        prefill=len(renderer.encode(prefill)),
    )
    mask = action_mask(renderer, step)
    assert mask.shape == response.shape
    return renderer.decode(response[mask], skip_special=False)


@pytest.mark.parametrize(
    ("text", "calls", "action"),
    [
        ("hello there", 0, "hello there"),
        (f"I shall look.\n{CALL}", 1, f"\n{CALL}"),
        (f"{CALL}\n{OTHER}", 2, f"{CALL}\n{OTHER}"),
        (CALL, 0, CALL),  # no tools were offered, so it is only said
        ("", 0, ""),
    ],
)
def test_calls_are_the_action_and_without_any_what_is_said(text: str, calls: int, action: str) -> None:
    assert marked(tiny_renderer("hermes"), text, calls) == action


def test_a_forced_call_goes_on_from_what_the_gateway_began() -> None:
    begun, rest = "<tool_call>\n", CALL.removeprefix("<tool_call>\n")
    assert marked(tiny_renderer("hermes"), rest, 1, prefill=begun) == rest


def test_what_is_said_after_a_forced_call_is_not_part_of_it() -> None:
    begun, rest = "<tool_call>\n", CALL.removeprefix("<tool_call>\n")
    assert marked(tiny_renderer("hermes"), f"{rest}\nthat is all", 1, prefill=begun).strip() == rest


@pytest.mark.parametrize("calls", [0, 1])
def test_reasoning_is_never_part_of_it(calls: int) -> None:
    template = (
        "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
        "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
        "{{ message['content'] }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    renderer = tiny_renderer("hermes", template)
    text = "<think>\nhow to look\n</think>\n\n"
    assert marked(renderer, text + (CALL if calls else "so it is"), calls).strip() == (CALL if calls else "so it is")
