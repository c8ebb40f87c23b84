"""The policy that the experiments train: 80,000 parameters over words and letters, made here and warmed up a little."""

import json
import random
import string
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils.logging import disable_progress_bar

from stepwell.cache import cached
from stepwell.config import Config
from stepwell.environments.cipher import Cipher, CipherConfig
from stepwell.policy.critic import CriticKind
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.trainer.sft import Demonstration, supervised_update
from stepwell.types import Ids

_SPECIALS: Final = ("<|end|>", "<|user|>", "<|assistant|>", "<|unknown|>")
_SAID: Final = ("turn ", " of ", ", ", " right: ")
_CORRECT: Final = "final_correctness: correct\n"
_PEER: Final = "peer_correct_trajectory:\n<peer_correct_trajectory>\n", "\n</peer_correct_trajectory>\n"
_HINT: Final = "\n<hindsight>\n", "</hindsight>\n\n"
_HINTS: Final = (*_HINT, _CORRECT, "final_correctness: incorrect\n", *_PEER)
_TURNS: Final = 16
"""The most of an episode that the warm-up knows of, so that one policy is good for all lengths up to it."""
_HINTED: Final = 4
"""The most where there are hints, whose transcripts get long."""
_BATCH: Final = 96
"""Turns of a warm-up's update."""


class WarmUp(Config):
    """What the policy is shown before it learns from reward."""

    updates: int = Field(default=100, ge=0)
    """Supervised updates."""
    wrong: float = Field(default=0.6, ge=0, le=1)
    """Share of random answers among those that it imitates."""
    hinted: float = Field(default=0.0, ge=0, le=1)
    """Share of its turns that come after a hint, that the outcome was correct or what a correct peer did, and are
    answered right: so the policy can use one, as a pretrained model could."""
    earlier: int = Field(default=0, ge=0)
    """A prompt shows up to so many turns before its own."""
    lr: float = Field(default=3e-3, gt=0)
    """AdamW's learning rate."""


class Words:
    """Texts as token ids, in the chat format of the policy: `<|user|>…<|end|><|assistant|>…<|end|>`."""

    def __init__(self) -> None:
        """Make the tokenizer: a number, a letter, or what environment and hints say, is one token each."""
        symbols = [*_SPECIALS, *_SAID, *_HINTS, *map(str, range(101)), *string.ascii_lowercase]
        ids = {symbol: number for number, symbol in enumerate(symbols)}
        self._tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<|unknown|>"))
        pattern = "|".join([*sorted([*_SAID, *_HINTS], key=len, reverse=True), r"\d+", "."])
        self._tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        self._tokenizer.add_special_tokens(list(_SPECIALS))
        self._known: dict[str, Ids] = {}
        self.size: Final = len(symbols)
        self.end: Final = ids["<|end|>"]

    def ids(self, text: str) -> Ids:
        """Token ids, int32 [P]."""
        if text not in self._known:
            self._known[text] = np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int32)
        return self._known[text]

    def asked(self, observation: str) -> Ids:
        """The prompt that one observation makes, int32 [P]."""
        return self.ids(f"<|user|>{observation}<|end|><|assistant|>")

    def text(self, response: Ids) -> str:
        """What a response says."""
        return "".join(str(self._tokenizer.id_to_token(int(token))) for token in response if token != self.end)


def warmed_up(environment: CipherConfig, warm_up: WarmUp, critic: CriticKind, seed: int) -> Policy:
    """A policy that knows the form of an answer, and some of the right ones; kept in the cache."""
    matters = {"turns": _TURNS, "delay": 0, "pays": "each"}  # of these the warm-up knows nothing
    environment = environment.model_copy(update=matters)
    decides = [environment.model_dump(mode="json"), warm_up.model_dump(mode="json"), seed]
    name = sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    disable_progress_bar()
    folder = cached(f"experiments/{name}", lambda folder: _make(folder, environment, warm_up, seed))
    torch.manual_seed(seed)  # for the critic's head
    return Policy.load(folder, PolicyConfig(critic=critic), name="cipher")


def _make(folder: Path, environment: CipherConfig, warm_up: WarmUp, seed: int) -> None:
    torch.manual_seed(seed)
    words = Words()
    Qwen2ForCausalLM(_config(words)).save_pretrained(folder / "plain")
    policy = Policy.load(folder / "plain", name="cipher")
    optimizer = torch.optim.AdamW(policy.trainable_parameters(), lr=warm_up.lr, weight_decay=0.0)
    examples = _examples(words, environment.build(), warm_up, seed)
    for _ in range(warm_up.updates):
        supervised_update(policy, optimizer, [next(examples) for _ in range(_BATCH)])
    policy.plain_model().save_pretrained(folder)


def _config(words: Words) -> Qwen2Config:
    settings: dict[str, Any] = {
        "vocab_size": words.size,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "initializer_range": 0.08,  # at the usual 0.02 a model this small learns slowly
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": words.end,
    }
    return Qwen2Config(**settings)


def _examples(words: Words, tasks: Cipher, warm_up: WarmUp, seed: int) -> Iterator[Demonstration]:
    """Turns one by one, each with whatever count of right answers before it."""
    draw = random.Random(f"warm-up-{seed}")

    def turn(number: int, turns: int, wrong: float) -> tuple[Ids, Ids, str]:
        word = tasks.random_word(draw)
        said = tasks.random_word(draw) if draw.random() < wrong else tasks.secret(word)
        prompt = words.asked(f"turn {number + 1} of {turns}, {draw.randint(0, number)} right: {word}")
        return prompt, np.append(words.ids(said), np.int32(words.end)), word

    while True:
        turns = draw.randint(1, _HINTED if warm_up.hinted else _TURNS)
        number = draw.randrange(turns)
        first = number - draw.randint(0, min(warm_up.earlier, number))
        past = [ids for earlier in range(first, number) for ids in turn(earlier, turns, warm_up.wrong)[:2]]
        hinted = draw.random() < warm_up.hinted
        prompt, answer, word = turn(number, turns, 0.0 if hinted else warm_up.wrong)
        hint = _hint(words, tasks, draw, turns, number, word) if hinted else np.empty(0, np.int32)
        shown = np.concatenate([*past, prompt, hint])
        mask = np.arange(len(shown) + len(answer)) >= len(shown)
        yield Demonstration(np.concatenate([shown, answer]).astype(np.int32), mask)


def _hint(words: Words, tasks: Cipher, draw: random.Random, turns: int, number: int, word: str) -> Ids:
    """As `stepwell.algorithms.hindsight` tells it: that it ended well, or what a peer did who was always right.

    Of a peer's prompts, which are made anew each turn, it tells what differs from the one before.
    """
    if draw.random() < 0.5:
        return words.ids("".join([_HINT[0], _CORRECT, _HINT[1]]))
    parts = [_HINT[0], _PEER[0]]
    for turn in range(turns):
        told = word if turn == number else tasks.random_word(draw)
        parts += [f"{turn + 1} of {turns}, {turn} right: {told}<|end|><|assistant|>"] if turn else []
        parts.append(f"{tasks.secret(told)}<|end|>")
    return words.ids("".join([*parts, _PEER[1], _HINT[1]]))
