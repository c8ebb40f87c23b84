"""The incremental decoders against the tokenizer's own decoding of everything at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from stepwell.rendering.decoding import ByteDecoder, Vocabulary, WindowDecoder
from tests.fakes.models import tiny_tokenizer

MARK = "<|tool|>"


def _byte_level() -> Tokenizer:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([MARK])
    tokenizer.add_tokens([AddedToken("<｜wide▁mark｜>", normalized=False), AddedToken("two words", normalized=False)])  # noqa: RUF001
    return tokenizer


def _byte_fallback() -> Tokenizer:
    """Words that begin with `▁`, and bytes as `<0xXX>`, as in Llama 2's and Mistral's first vocabularies."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "a", "b", "▁a"]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(["</s>", MARK])
    return tokenizer


BYTES = Vocabulary(_byte_level(), kept={MARK})
WORDS = Vocabulary(_byte_fallback(), kept={MARK})


def _ids(vocabulary: Vocabulary) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, vocabulary.tokenizer.get_vocab_size() + 1), max_size=30)


def _decoded(vocabulary: Vocabulary, ids: list[int]) -> str:
    """All at once; kept marks are not asked for."""
    return vocabulary.tokenizer.decode(ids, skip_special_tokens=True)


@given(_ids(BYTES).filter(lambda ids: not BYTES.kept & set(ids)))
def test_pieces_of_bytes_concatenate_to_the_decoding_of_all(ids):
    decoder = ByteDecoder(BYTES)
    assert "".join([*(decoder.feed([i]) for i in ids), decoder.finish()]) == _decoded(BYTES, ids)
    together = ByteDecoder(BYTES)
    assert together.feed(ids) + together.finish() == _decoded(BYTES, ids)


@given(_ids(WORDS).filter(lambda ids: not WORDS.kept & set(ids)))
def test_pieces_of_words_concatenate_to_the_decoding_of_all(ids):
    decoder = WindowDecoder(WORDS)
    assert "".join([*(decoder.feed([i]) for i in ids), decoder.finish()]) == _decoded(WORDS, ids)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd")))
def test_no_piece_of_valid_text_ends_inside_a_character(text):
    decoder = ByteDecoder(BYTES)
    pieces = [decoder.feed([i]) for i in BYTES.tokenizer.encode(text).ids]
    assert "\ufffd" not in "".join(pieces)
    assert decoder.finish() == ""


def test_a_character_appears_with_its_last_token():
    decoder = ByteDecoder(BYTES)
    assert [decoder.feed([i]) for i in BYTES.tokenizer.encode("a€").ids] == ["a", "", "", "€"]


@pytest.mark.parametrize(("vocabulary", "decoder"), [(BYTES, ByteDecoder), (WORDS, WindowDecoder)])
def test_special_tokens_are_left_out_unless_they_are_kept(vocabulary, decoder):
    special = "<|im_end|>" if vocabulary is BYTES else "</s>"
    ids = [vocabulary.tokenizer.token_to_id(token) for token in ("a", MARK, "b", special, "a")]
    pieces = decoder(vocabulary)
    assert "".join([*(pieces.feed([i]) for i in ids), pieces.finish()]) == f"a{MARK}ba"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_the_bytes_of_tokens_are_the_bytes_of_the_text(text):
    ids = BYTES.tokenizer.encode(text).ids
    assert b"".join(BYTES.token_bytes(i) for i in ids) == text.encode()


def test_tokens_of_words_and_bytes_have_their_bytes_and_unknown_ids_none():
    of = {token: WORDS.token_bytes(WORDS.tokenizer.token_to_id(token)) for token in ("▁the", "<0xE2>", "a", "</s>")}
    assert of == {"▁the": b" the", "<0xE2>": b"\xe2", "a": b"a", "</s>": b"</s>"}
    assert [WORDS.token_bytes(i) for i in (-1, 10**9, 2**40)] == [b"", b"", b""]
