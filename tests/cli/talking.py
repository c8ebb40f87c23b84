"""A conversation of four turns for a policy that thinks before it speaks, and a model for it, made from nothing."""

import json
import random
import string
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM

from stepwell.rendering.messages import Message
from stepwell.rollout.env import Environment, Outcome, TaskSetConfig

TURNS = 4
SUM_UP = "sum"
"""What asks for a summary, in an alphabet of letters."""
_SPECIALS = ("<|end|>", "<|user|>", "<|assistant|>", "<think>", "</think>", "<|unknown|>")
_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{% if message.reasoning_content %}"
    "<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class TalkConfig(TaskSetConfig):
    """Settings of the conversation: none."""

    def build(self) -> "Talk":
        return Talk()


class Talk:
    """The user names a letter each turn; the reward is the share of answers without it."""

    name = "talk"

    def tasks(self, split: str) -> Sequence[str]:
        return [f"{split}-{number}" for number in range(50)]

    def make(self) -> Environment:
        return _Conversation()

    def demonstration(self, seed: int, wrong: float) -> tuple[Message, ...]:
        draw = random.Random(seed)
        messages: list[Message] = []
        for _ in range(2):
            said, thought, spoken = ("".join(draw.choices(string.ascii_lowercase, k=k)) for k in (1, 2, 2))
            messages.append(Message(role="user", content=said))
            messages.append(Message(role="assistant", content=spoken, reasoning=thought))
        return tuple(messages)


class _Conversation:
    tools = ()

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        self._draw = random.Random(task_id)
        self._turns = 0
        return (self._say(),)

    def step(self, action: Message) -> Outcome:
        self._turns += 1
        earned = (("without", float(self._letter not in action.content) / TURNS),)
        if self._turns == TURNS:
            return Outcome(reward_parts=earned, terminated=True)
        return Outcome(messages=(self._say(),), reward_parts=earned)

    def _say(self) -> Message:
        self._letter = self._draw.choice(string.ascii_lowercase)
        return Message(role="user", content=self._letter)


def write_talker(directory: Path) -> Path:
    """A checkpoint of random weights."""
    directory.mkdir()
    torch.manual_seed(0)
    symbols = [*_SPECIALS, *string.ascii_letters, " ", ",", ":", "\n"]
    tokenizer = Tokenizer(models.WordLevel({s: i for i, s in enumerate(symbols)}, unk_token="<|unknown|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(_SPECIALS))
    config = Qwen2Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.08,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|end|>"),
    )
    Qwen2ForCausalLM(config).save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "unk_token": "<|unknown|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": _TEMPLATE}))
    return directory
