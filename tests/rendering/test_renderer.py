import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import ConfigError, InvalidRequest
from stepwell.rendering.messages import Message, Tool, ToolCall
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


def test_special_tokens_are_left_out_of_what_is_decoded_unless_asked_for():
    ids = RENDERER.encode("hello<|im_end|>")
    assert RENDERER.decode(ids) == "hello"
    assert RENDERER.decode(ids, skip_special=False) == "hello<|im_end|>"
    assert RENDERER.raw_answer(ids) == "hello"


@given(st.lists(st.integers(0, tiny_tokenizer().get_vocab_size() - 1), max_size=30))
def test_pieces_of_any_tokens_concatenate_to_the_decoding_of_all(ids):
    decoder = RENDERER.decoder()
    pieces = [decoder.feed([i]) for i in ids]
    assert "".join([*pieces, decoder.finish()]) == RENDERER.decode(ids)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_no_piece_of_valid_text_ends_inside_a_character(text):
    decoder = RENDERER.decoder()
    pieces = [decoder.feed([int(i)]) for i in RENDERER.encode(text)]
    assert "\ufffd" not in "".join(pieces)
    assert decoder.finish() == ""


def test_a_character_appears_with_its_last_token():
    decoder = RENDERER.decoder()
    assert [decoder.feed([int(i)]) for i in RENDERER.encode("a€")] == ["a", "", "", "€"]


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
    with pytest.raises(ConfigError, match="hermes, line"):
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
