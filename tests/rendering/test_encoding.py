import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from stepwell.policy.builtin import resolve_model
from stepwell.rendering.encoding import Encoder
from tests.fakes.models import SPECIAL, tiny_tokenizer

TOKENIZER = tiny_tokenizer()
TEXTS = st.lists(st.sampled_from([*SPECIAL, "hello ", "ab" * 20, "€\n", " ", "<|im_"]), max_size=8).map("".join)


def _whole(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


@given(st.lists(TEXTS, max_size=6))
def test_the_ids_are_those_of_the_whole_text_whatever_was_encoded_before(texts):
    encoder = Encoder(TOKENIZER, budget=2_000)
    for text in [*texts, *texts]:
        assert encoder.encode(text).tolist() == _whole(TOKENIZER, text)


def test_a_part_that_was_seen_is_not_tokenised_again():
    class Counting:
        calls = 0

        def __getattr__(self, name):
            return getattr(TOKENIZER, name)

        def encode(self, *arguments, **options):
            self.calls += 1
            return TOKENIZER.encode(*arguments, **options)

    counting = Counting()
    encoder = Encoder(counting)
    text = "<|im_start|>" + "hello " * 20 + "<|im_end|>"
    first = encoder.encode(text)
    before = counting.calls
    assert encoder.encode(text).tolist() == first.tolist()
    assert counting.calls == before


def test_what_is_remembered_stays_within_its_budget():
    encoder = Encoder(TOKENIZER, budget=5_000)
    for number in range(200):
        encoder.encode(f"{number} " + "hello " * 10)
    assert sum(4 * len(part) + 4 * len(ids) for part, ids in [*encoder._young.items(), *encoder._old.items()]) <= 5_000


def _with_words(pattern: str | None) -> Tokenizer:
    """Words as GPT-2 cuts them, or by a pattern."""
    tokenizer = tiny_tokenizer()
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    split = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte_level])
    return tokenizer


_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LOOKUP = Tokenizer.from_file(str(resolve_model("lookup") / "tokenizer.json"))  # has words that end in a space
PROSE = st.text(st.sampled_from("the l1.'\n €é"), max_size=30)
CALLS = st.lists(st.sampled_from(["find ", "search ", "open ", "answer ", "a", " ", "<|end|>"]), max_size=8).map(
    "".join
)


@pytest.mark.parametrize(
    "tokenizer", [_with_words(None), _with_words(_QWEN), LOOKUP], ids=["gpt2", "qwen", "whole words"]
)
@given(texts=st.lists(PROSE | CALLS, max_size=6))
def test_the_ids_are_those_of_the_whole_text_whatever_the_tokenizer_takes_for_a_word(tokenizer, texts):
    encoder = Encoder(tokenizer, budget=3_000)
    for text in [*texts, " ".join(texts), *texts]:
        assert encoder.encode(text).tolist() == tokenizer.encode(text, add_special_tokens=False).ids


def test_a_call_of_the_lookup_model_is_one_token_for_its_word():
    assert len(Encoder(LOOKUP).encode("find ")) == 1


@given(TEXTS)
def test_a_tokenizer_whose_special_tokens_do_not_cut_is_left_whole(text):
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "b": 2, "▁a": 3}, merges=[("▁", "a")], unk_token="b"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(SPECIAL)
    assert Encoder(tokenizer).encode(text).tolist() == _whole(tokenizer, text)
