"""Token ids to text as they are sampled: by a table of each token's bytes where the vocabulary allows it."""

import codecs
import re
from collections.abc import Collection, Sequence
from typing import Final

from tokenizers import Tokenizer, decoders, pre_tokenizers

_REPLACEMENT: Final = "\N{REPLACEMENT CHARACTER}"
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WORD_START: Final = "▁"


def _byte_characters() -> dict[str, int]:
    """The characters by which byte-level vocabularies write bytes: those that print stand for themselves, the others
    are counted up from 256. The tokenizers library has the alphabet, not the order."""
    printing = {byte for byte in range(256) if chr(byte) in pre_tokenizers.ByteLevel.alphabet()}
    others = [byte for byte in range(256) if byte not in printing]
    return {chr(byte): byte for byte in printing} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = _byte_characters()


class Vocabulary:
    """What each token of a tokenizer stands for; made when first asked for and kept. Safe to share between threads."""

    def __init__(self, tokenizer: Tokenizer, kept: Collection[str]) -> None:
        """Look at `tokenizer`. Special tokens are no part of a reply's text, unless their text is in `kept`."""
        self.tokenizer: Final = tokenizer
        self.byte_level: Final = isinstance(tokenizer.decoder, decoders.ByteLevel)
        self._added = tokenizer.get_added_tokens_decoder()
        self.kept: Final = frozenset(i for i, token in self._added.items() if token.special and token.content in kept)
        self.bytes: Final = _Bytes(self)
        """Of each token, by id."""
        self.texts: Final = _Texts(self)

    def token_bytes(self, token_id: int) -> bytes:
        """A token's own bytes, special ones written out; none if there is no such token."""
        return self.bytes[token_id]

    def reply_bytes(self, token_id: int) -> bytes:
        """What a token adds to a reply: nothing, if it is a special one that is not kept."""
        return b"" if self._dropped(token_id) else self.token_bytes(token_id)

    def silent(self, token_id: int) -> bool:
        """Whether a reply reads as if the token were not there: a special one that is not kept, or none at all."""
        return self._dropped(token_id) or not self.token_bytes(token_id)

    def _dropped(self, token_id: int) -> bool:
        added = self._added.get(token_id)
        return added is not None and added.special and token_id not in self.kept

    def find_bytes(self, token_id: int) -> bytes:
        """`token_bytes`, without looking whether they are known already."""
        token = self.tokenizer.id_to_token(token_id) if 0 <= token_id < 2**32 else None
        if token is None:
            return b""
        if self.byte_level:
            data = [_BYTES.get(character) for character in token]
            known = [byte for byte in data if byte is not None]
            return bytes(known) if len(known) == len(data) else token.encode()
        if token_id in self._added:
            return token.encode()
        if byte := _BYTE_TOKEN.fullmatch(token):
            return bytes([int(byte[1], 16)])
        if _WORD_START in token:
            return token.replace(_WORD_START, " ").encode()
        return self.tokenizer.decode([token_id], skip_special_tokens=False).encode()


class _Bytes(dict[int, bytes]):
    """Each token's own bytes, found when they are first asked for."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, token_id: int) -> bytes:
        data = self[token_id] = self._vocabulary.find_bytes(token_id)
        return data


class _Texts(dict[int, str | None]):
    """Per token of a byte-level vocabulary what it adds to a reply; None if that is not whole characters."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__()
        self._vocabulary = vocabulary

    def __missing__(self, token_id: int) -> str | None:
        data = self._vocabulary.reply_bytes(token_id)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = None
        self[token_id] = text
        return text


class ByteDecoder:
    """An `IncrementalDecoder` for byte-level vocabularies, where a text's bytes are those of its tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start before the first token."""
        self._vocabulary = vocabulary
        self._texts = vocabulary.texts
        self._held = b""

    def feed(self, ids: Sequence[int]) -> str:
        """See `IncrementalDecoder`."""
        if not self._held:
            try:
                return "".join([self._texts[token_id] for token_id in ids])  # type: ignore[misc]  # None raises
            except TypeError:
                pass  # one of them is not whole characters
        text = ""
        for token_id in ids:
            piece = None if self._held else self._texts[token_id]
            text += self._decode(token_id) if piece is None else piece
        return text

    def finish(self) -> str:
        """See `IncrementalDecoder`."""
        held, self._held = self._held, b""
        return held.decode(errors="replace")

    def _decode(self, token_id: int) -> str:
        data = self._held + self._vocabulary.reply_bytes(token_id)
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._held = data[used:]
        return text


class WindowDecoder:
    """An `IncrementalDecoder` for any vocabulary: decodes the newest tokens together with those before them."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Start before the first token."""
        self._vocabulary = vocabulary
        self._window: list[int] = []  # tokens since the last-but-one piece: context for decoders that look back
        self._sent = 0  # tokens of the window whose text was handed out

    def feed(self, ids: Sequence[int]) -> str:
        """See `IncrementalDecoder`."""
        text = ""
        for token_id in ids:
            if token_id in self._vocabulary.kept:
                text += self.finish() + self._vocabulary.token_bytes(token_id).decode()
            elif not self._vocabulary.silent(token_id):  # else bytes on both sides of it may be one character
                self._window.append(token_id)
        return text + self._complete()

    def finish(self) -> str:
        """See `IncrementalDecoder`."""
        text = self._tail()
        self._sent = len(self._window)
        return text

    def _complete(self) -> str:
        text = self._tail()
        if text.endswith(_REPLACEMENT) or self._ends_in_byte():
            return ""
        del self._window[: self._sent]
        self._sent = len(self._window)
        return text

    def _tail(self) -> str:
        decode = self._vocabulary.tokenizer.decode
        before = decode(self._window[: self._sent], skip_special_tokens=True)
        return decode(self._window, skip_special_tokens=True)[len(before) :]

    def _ends_in_byte(self) -> bool:
        # Byte-fallback vocabularies decode a run of byte tokens as a whole, so its text is known only after the run.
        token = self._vocabulary.tokenizer.id_to_token(self._window[-1]) if self._window else None
        return token is not None and _BYTE_TOKEN.fullmatch(token) is not None


IncrementalDecoder = ByteDecoder | WindowDecoder
"""Token ids in, text out as early as possible.

`feed` gives the text that tokens complete, empty while a character is incomplete; `finish` what was held back: an
incomplete character, as U+FFFD. Laws: the pieces concatenate to the decoding of all ids without special tokens, the
kept ones aside; no piece ends inside a character.
"""
