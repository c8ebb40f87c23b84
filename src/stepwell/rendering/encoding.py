"""Text to token ids, with what was tokenised before taken from memory.

A conversation is sent anew with every call, and much of it, system prompts and tools above all, is the same in every
conversation. Special tokens cut a text into parts that most tokenizers treat one by one; each part is remembered. What
is new is made of words that are not: where the tokenizer treats words one by one as well, they are remembered too.
"""

import re
import threading
from collections.abc import Callable
from itertools import product
from typing import Final, Generic, TypeVar

import numpy as np
from tokenizers import Tokenizer, normalizers

from stepwell.errors import InvalidRequest
from stepwell.types import Ids

_LONG: Final = 8192
"""Characters from which on other threads should be able to run meanwhile."""
_PROBES: Final = ("a b", " a", "\n\nb ", "É!")
_WORD: Final = re.compile(r"(?<=[!-~])(?= [A-Za-z])")
"""Between two words: before a single space that follows something visible and precedes a letter."""
_KINDS: Final = ("a", "B", "1", ".", "'", "\n", " ", "é")
"""Characters of each kind that tokenizers tell apart."""
_Value = TypeVar("_Value")


class Encoder:
    """One tokenizer with its memory; safe to share between threads.

    Law: `encode` gives what the tokenizer gives for the whole text.
    """

    def __init__(self, tokenizer: Tokenizer, budget: int = 16 * 2**20) -> None:
        """Remember parts and words of at most `budget` bytes together."""
        self._tokenizer = tokenizer
        self._parts: Remembered[Ids] = Remembered(budget // 2, lambda ids: ids.nbytes)
        self._words = Remembered[list[int]](budget // 2, lambda ids: 8 * len(ids)) if _has_words(tokenizer) else None
        marks = sorted(self._separators(), key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, marks)) + ")") if marks else None

    def encode(self, text: str) -> Ids:
        """int32 [P]. Raises InvalidRequest if the text holds a lone surrogate, which no tokenizer can encode."""
        if self._cut is None:
            return self._whole(text)
        parts = [self._part(part) for part in self._cut.split(text) if part]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def _part(self, part: str) -> Ids:
        ids = self._parts.get(part)
        if ids is None:
            ids = self._whole(part)
            self._parts.put(part, ids)
        return ids

    def _whole(self, text: str) -> Ids:
        try:
            if len(text) > _LONG:  # only the library's calls for batches let other threads run meanwhile
                ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
            elif self._words is None:
                ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            else:
                ids = self._by_words(text, self._words)
        except (UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest(f"the text is not valid Unicode: {error}") from error
        return np.array(ids, np.int32)

    def _by_words(self, text: str, known: "Remembered[list[int]]") -> list[int]:
        ids: list[int] = []
        unknown: list[str] = []  # in a row: one call for all of them is cheaper than one for each
        young = known.young
        for word in _WORD.split(text):
            found = young.get(word) or known.get(word)
            if found is None:
                unknown.append(word)
                continue
            if unknown:
                ids += self._learnt(unknown, known)
                unknown = []
            ids += found
        return ids + self._learnt(unknown, known) if unknown else ids

    def _learnt(self, words: list[str], known: "Remembered[list[int]]") -> list[int]:
        """The ids of words that follow each other, which are known from now on."""
        encoding = self._tokenizer.encode("".join(words), add_special_tokens=False)
        ids = encoding.ids
        if len(words) == 1:
            known.put(words[0], ids)
            return ids
        starts = [start for start, _ in encoding.offsets]
        end = place = 0
        for word in words:
            end += len(word)
            first = place
            while place < len(ids) and starts[place] < end:
                place += 1
            known.put(word, ids[first:place])
        return ids

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


class Remembered(Generic[_Value]):
    """Values by text, of at most a number of bytes together.

    Two generations, the older of which goes when the younger is full: looking up needs no lock and no order.
    """

    def __init__(self, budget: int, size: Callable[[_Value], int]) -> None:
        """Start with nothing; `size` gives the bytes of a value."""
        self._generation = budget // 2
        self._size = size
        self._held = 0
        self.young: dict[str, _Value] = {}
        """Of what is remembered, most; to be read."""
        self._old: dict[str, _Value] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self.young.keys() | self._old.keys())

    def get(self, text: str) -> _Value | None:
        """The value of `text`, if it is remembered."""
        value = self.young.get(text)
        if value is None and (value := self._old.get(text)) is not None:
            self.put(text, value)
        return value

    def put(self, text: str, value: _Value) -> None:
        """Remember a value."""
        with self._lock:
            self.young[text] = value
            self._held += 4 * len(text) + self._size(value) + 200
            if self._held > self._generation:
                self._old, self.young, self._held = self.young, {}, 0


def _has_words(tokenizer: Tokenizer) -> bool:
    """Whether a text that is cut between words has the tokens of its pieces, as probes show.

    A model splits what its pre-tokenizer splits, each piece by itself; so it is enough to look at the latter, and at
    what comes before it.
    """
    splitter, normalizer = tokenizer.pre_tokenizer, tokenizer.normalizer
    if splitter is None or not (normalizer is None or isinstance(normalizer, normalizers.NFC)):
        return False
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    if any(" " in content or content[:1].isalnum() or content[-1:].isalnum() for content in added):
        return False
    lefts = [before + last for before, last in product(_KINDS, repeat=2) if _WORD.search(f"{last} a")]
    rights = [f" {first}{after}" for first, after in product("aB", _KINDS)]

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in splitter.pre_tokenize_str(text)]

    return all(pieces(left + right) == pieces(left) + pieces(right) for left, right in product(lefts, rights))
