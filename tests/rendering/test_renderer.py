import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import ConfigError, InvalidRequest
from stepwell.rendering.messages import Message, Tool, ToolCall
from stepwell.rendering.pieces import message_of
from stepwell.rendering.renderer import Renderer
from tests.fakes.models import CHATML, tiny_renderer, tiny_tokenizer, write_model_directory

TOOL = Tool(name="search", description="Suche: ü", parameters={"type": "object", "properties": {}})
CONVERSATION = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="héllo <|im_end|> 🌍"),
    Message(role="assistant", content="hello"),
    Message(role="user", content="  tabs\tand\n\nlines "),
)
NATIVE = (
    "{%- if tools %}\n    {{- '<tools>' }}\n    {%- for tool in tools %}{{ tool | tojson }}{% endfor %}\n{%- endif %}\n"
    "{%- for m in messages %}{%- if m.role == 'skip' %}{% continue %}{% endif %}\n"
    "<|im_start|>{{ m.role }} {% generation %}{{ m.content }}{% endgeneration %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>\n"
    "{%- endfor %}{{ eos_token }}"
)
RENDERER = tiny_renderer()


def _as_dicts(messages: tuple[Message, ...]) -> list[dict[str, object]]:
    shapes: list[dict[str, object]] = []
    for message in messages:
        shape: dict[str, object] = {"role": message.role, "content": message.content}
        if message.tool_calls:
            shape["tool_calls"] = [
                {"type": "function", "function": {"name": c.name, "arguments": json.loads(c.arguments)}}
                for c in message.tool_calls
            ]
        shapes.append(shape)
    return shapes


def _reference(directory: Path, messages: tuple[Message, ...], tools: list[dict[str, object]] | None) -> list[int]:
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    encoded = tokenizer.apply_chat_template(
        _as_dicts(messages), tools=tools, add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(encoded["input_ids"])


def test_prompts_have_the_ids_that_transformers_gives(tmp_path):
    directory = write_model_directory(tmp_path)
    renderer = Renderer.from_directory(directory)
    assert renderer.render(CONVERSATION).tolist() == _reference(directory, CONVERSATION, None)


def test_a_template_that_takes_tools_gets_them_as_transformers_gives_them(tmp_path):
    directory = write_model_directory(tmp_path, NATIVE)
    renderer = Renderer.from_directory(directory)
    call = ToolCall(id="1", name="search", arguments='{"q": "ü", "n": [1]}')
    messages = (*CONVERSATION, Message(role="assistant", tool_calls=(call,)))
    schema = {"name": "search", "description": "Suche: ü", "parameters": TOOL.parameters}
    reference = _reference(directory, messages, [{"type": "function", "function": schema}])
    assert renderer.render(messages, [TOOL]).tolist() == reference


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_encoding_and_decoding_gives_the_text_back(text):
    assert RENDERER.decode(RENDERER.encode(text), skip_special=False) == text


def test_long_text_has_the_ids_of_its_parts_joined():
    part = "héllo <|im_end|>"
    assert RENDERER.encode(part * 1000).tolist() == RENDERER.encode(part).tolist() * 1000
    with pytest.raises(InvalidRequest, match="Unicode"):
        RENDERER.encode("a" * 10_000 + "\ud800")


def test_special_tokens_are_left_out_of_what_is_decoded_unless_asked_for():
    ids = RENDERER.encode("hello<|im_end|>")
    assert RENDERER.decode(ids) == "hello"
    assert RENDERER.decode(ids, skip_special=False) == "hello<|im_end|>"
    assert RENDERER.decoder().feed([int(i) for i in ids]) == "hello"


def test_end_of_turn_ids_come_from_generation_config_and_tokenizer(tmp_path):
    directory = write_model_directory(tmp_path)
    (directory / "generation_config.json").write_text('{"eos_token_id": [5, 7]}')
    end = tiny_tokenizer().token_to_id("<|im_end|>")
    assert Renderer.from_directory(directory).eos_ids == {5, 7, end}


def test_a_template_file_wins_over_the_one_in_the_tokenizer_config(tmp_path):
    directory = write_model_directory(tmp_path)
    (directory / "chat_template.jinja").write_text("{{ bos_token }}file")
    assert Renderer.from_directory(directory).text(CONVERSATION) == "<|im_start|>file"


def test_a_directory_without_tokenizer_or_template_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="tokenizer"):
        Renderer.from_directory(tmp_path)
    directory = write_model_directory(tmp_path)
    (directory / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ConfigError, match="chat template"):
        Renderer.from_directory(directory)


def test_an_unknown_tool_format_is_refused_with_the_ones_that_exist():
    with pytest.raises(ConfigError, match=r"hermes, .*, line"):
        tiny_renderer("xml")


def test_a_template_that_does_not_compile_is_a_config_error():
    with pytest.raises(ConfigError, match="does not compile"):
        tiny_renderer(template="{% for %}")


@pytest.mark.parametrize("refusal", ["{{ raise_exception('no system role') }}", "{{ messages[9].content + 1 }}"])
def test_a_conversation_that_the_template_refuses_is_an_invalid_request(refusal):
    with pytest.raises(InvalidRequest, match="refuses"):
        tiny_renderer(template=refusal).text(CONVERSATION)


def test_a_template_cannot_reach_the_interpreter():
    with pytest.raises(InvalidRequest):
        tiny_renderer(template="{{ ''.__class__.__mro__[1].__subclasses__() }}").text(CONVERSATION)


def test_a_lone_surrogate_is_an_invalid_request():
    with pytest.raises(InvalidRequest, match="Unicode"):
        tiny_renderer(template=CHATML).render([Message(role="user", content="\ud800")])


# What chat templates do that matters to us, each as short as it gets.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
OPENING = CHATML.replace("assistant\n", "assistant\n<think>\n") + "{# </think> #}"
SPLITTING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
ANSWER = Message(role="assistant", content=" Paris. ", reasoning="Easy.")
TURNS = (Message(role="user", content="?"), ANSWER)


def _read(renderer, text, prompt_end="", tools=()):
    parser = renderer.parser(tools, prompt_end)
    return message_of([*parser.feed(text), *parser.finish()])


def test_a_template_gets_reasoning_and_decides_what_becomes_of_it():
    renderer = tiny_renderer(template=THINKING)
    assert "<think>\nEasy.\n</think>\n\nParis.<|im_end|>" in renderer.text(TURNS)
    assert "Easy." not in renderer.text((*TURNS, TURNS[0]))


def test_a_template_that_knows_reasoning_only_inside_the_content_gets_it_there():
    keeping = tiny_renderer(template=CHATML + "{# </think> #}")
    assert "<think>\nEasy.\n</think>\n\n Paris. <|im_end|>" in keeping.text(TURNS)
    assert "Easy." not in tiny_renderer(template=SPLITTING).text(TURNS)


def test_a_model_that_does_not_reason_is_not_shown_reasoning_and_keeps_the_marks_that_it_writes():
    assert "Easy." not in RENDERER.text(TURNS)
    assert _read(RENDERER, "<think>a</think>b").content == "<think>a</think>b"


def test_options_are_variables_of_the_template_but_change_nothing_that_is_fixed():
    renderer = tiny_renderer(template=THINKING)
    assert renderer.text(TURNS, (), {"enable_thinking": False}).endswith("<think>\n\n</think>\n\n")
    assert renderer.text(TURNS, (), {"messages": [], "unknown": 1, "eos_token": "x"}) == renderer.text(TURNS)


def test_reasoning_that_the_prompt_begins_is_parsed_without_its_opening_mark():
    renderer = tiny_renderer(template=OPENING)
    prompt = renderer.text(TURNS)
    assert prompt.endswith("<think>\n")
    answer = _read(renderer, "Easy.\n</think>\n\nParis.", prompt)
    assert (answer.reasoning, answer.content) == ("Easy.", "Paris.")
    assert _read(renderer, "Easy.").content == "Easy."


def test_what_a_template_writes_of_an_answer_parses_back_to_it():
    renderer = tiny_renderer(template=THINKING)
    before, after = renderer.text(TURNS[:1]), renderer.text(TURNS)
    answer = _read(renderer, after[len(before) : after.index("<|im_end|>", len(before))])
    assert (answer.reasoning, answer.content) == ("Easy.", "Paris.")


def test_a_forced_call_follows_reasoning_that_the_prompt_began():
    renderer = tiny_renderer(template=OPENING)
    prompt = renderer.text(TURNS)
    forced = renderer.forced([TOOL], "search", prompt)
    assert forced.prefix == "\n</think>\n\n<tool_call>\n"
    answer = _read(renderer, forced.prefix + '{"name": "search", "arguments": {}}', prompt, [TOOL])
    assert [(call.name, call.arguments) for call in answer.tool_calls] == [("search", "{}")]
    assert renderer.forced([TOOL]).prefix == "<tool_call>\n"


def test_a_tool_that_was_not_offered_cannot_be_forced():
    with pytest.raises(InvalidRequest, match="'find' cannot be called"):
        RENDERER.forced([TOOL], "find")


def test_the_tool_format_is_the_templates_unless_another_is_asked_for():
    template = CHATML + "{# <tool_call><function= #}"
    assert tiny_renderer(template=template).tool_format == "qwen_xml"
    assert tiny_renderer("line", template).tool_format == "line"
    assert RENDERER.tool_format == "hermes"


def test_special_tokens_that_mark_calls_are_part_of_a_reply_and_others_are_not():
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens(["<|python_tag|>", "<|eom_id|>"])
    renderer = Renderer(tokenizer, CHATML, special_tokens={}, eos_ids=[])
    text = '<|python_tag|>{"name": "search", "parameters": {}}<|eom_id|><|im_end|>'
    decoded = renderer.decoder().feed([int(i) for i in renderer.encode(text)])
    assert decoded == text.removesuffix("<|eom_id|><|im_end|>")
    (call,) = _read(renderer, decoded, tools=[TOOL]).tool_calls
    assert (call.name, call.arguments) == ("search", "{}")


def test_a_templates_own_place_for_tools_is_used_unless_the_format_is_line():
    call = ToolCall(id="1", name="search", arguments='{"q": 1}')
    messages = (*CONVERSATION, Message(role="assistant", tool_calls=(call,)))
    assert 'search({"q": 1})' in tiny_renderer(template=NATIVE).text(messages, [TOOL])
    assert "<tools>" not in tiny_renderer("line", NATIVE).text(messages, [TOOL])
    assert "# Tools" in RENDERER.text(messages, [TOOL])


def test_a_tokens_own_bytes_are_known():
    ids = RENDERER.encode("a€<|im_end|>")
    assert b"".join(RENDERER.token_bytes(int(i)) for i in ids) == "a€<|im_end|>".encode()
