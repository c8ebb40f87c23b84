"""Text to token ids, with what was tokenised before taken from memory.

A conversation is sent anew with every call, and much of it, system prompts and tools above all, is the same in every
conversation. Special tokens cut a text into parts that most tokenizers treat one by one; each part is remembered.
"""

import re
import threading
from itertools import product
from typing import Final

import numpy as np
from tokenizers import Tokenizer

from stepwell.errors import InvalidRequest
from stepwell.types import Ids

_PROBES: Final = ("a b", " a", "\n\nb ", "É!")


class Encoder:
    """One tokenizer with its memory; safe to share between threads.

    Law: `encode` gives what the tokenizer gives for the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, budget: int = 16 * 2**20) -> None:
        """Remember parts of at most `budget` bytes together."""
        self._tokenizer = tokenizer
        self._generation = budget // 2
        self._held = 0
        # Two generations, the older of which goes when the younger is full: looking up needs no lock and no order.
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._lock = threading.Lock()
        marks = sorted(self._separators(), key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def encode(self, text: str) -> Ids:
        """int32 [P]. Raises InvalidRequest if the text holds a lone surrogate, which no tokenizer can encode."""
        if self._cut is None:
            return self._whole(text)
        parts = [self._part(part) for part in self._cut.split(text) if part]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _part(self, part: str) -> Ids:
        ids = self._young.get(part)
        if ids is not None:
            return ids
        ids = self._old.get(part)
        if ids is None:
            ids = self._whole(part)
        with self._lock:
            self._young[part] = ids
            self._held += 4 * len(part) + ids.nbytes + 200
            if self._held > self._generation:
                self._old, self._young, self._held = self._young, {}, 0
        return ids

    def _whole(self, text: str) -> Ids:
        try:
            # A batch of one: only such calls let other threads run meanwhile, and leave the characters' offsets out.
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(f"the text is not valid Unicode: {error}") from error
        return np.array(ids, np.int32)

    def _separators(self) -> list[str]:
        """The special tokens that cut a text without changing what is on either side, as probes show."""
        added = self._tokenizer.get_added_tokens_decoder().values()
        plain = [
            token.content
            for token in added
            if token.special and not (token.lstrip or token.rstrip or token.single_word)
        ]
        return [mark for mark in plain if all(self._cuts(mark, *ends) for ends in product(_PROBES, repeat=2))]

    def _cuts(self, mark: str, left: str, right: str) -> bool:
        parts = [self._whole(part) for part in (left, mark, right)]
        return np.array_equal(self._whole(left + mark + right), np.concatenate(parts))
