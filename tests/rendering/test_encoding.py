from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

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


@given(TEXTS)
def test_a_tokenizer_whose_special_tokens_do_not_cut_is_left_whole(text):
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "b": 2, "▁a": 3}, merges=[("▁", "a")], unk_token="b"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.add_special_tokens(SPECIAL)
    assert Encoder(tokenizer).encode(text).tolist() == _whole(tokenizer, text)
