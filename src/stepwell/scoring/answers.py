"""Scoring short answers against gold answers, as SQuAD and HotpotQA define it: exact match and token F1.

Written from the definitions. One deliberate difference: a prediction that is empty after normalising never scores, not
even against a gold answer that is itself all articles and punctuation, so that saying nothing is never the best policy.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Final

_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_VERDICTS: Final = frozenset({"yes", "no", "noanswer"})


def normalise(text: str) -> str:
    """Lower case, no ASCII punctuation, no articles as whole words, single blanks. Accents stay."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1.0 if the normalised prediction equals one of the normalised gold answers, else 0.0."""
    said = normalise(prediction)
    return float(bool(said) and any(said == normalise(gold) for gold in golds))


def f1(prediction: str, golds: Sequence[str]) -> float:
    """The best token F1 (bag of normalised words, in 0..1) over the gold answers.

    HotpotQA's rule: where one side is `yes`, `no` or `noanswer`, only the same word scores; a sentence that begins
    with the right verdict earns nothing.
    """
    said = normalise(prediction)
    return max((_f1(said, normalise(gold)) for gold in golds), default=0.0)


def contains_answer(text: str, golds: Sequence[str]) -> bool:
    """Whether a gold answer stands in `text` as whole words, both normalised."""
    padded = f" {normalise(text)} "
    return any(f" {gold} " in padded for gold in map(normalise, golds) if gold)


def _f1(said: str, gold: str) -> float:
    if said != gold and not _VERDICTS.isdisjoint((said, gold)):
        return 0.0
    said_words, gold_words = said.split(), gold.split()
    common = (Counter(said_words) & Counter(gold_words)).total()
    return 2 * common / (len(said_words) + len(gold_words)) if common else 0.0
