"""Searching passages with BM25, and cutting what was found down to what a small model can read.

The index is bm25s's, built once per set of passages, kept in the cache and memory-mapped from there. Searching is
deterministic: equal scores keep the order of the passages, so replaying an episode shows the same texts.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stepwell.cache import cached
from stepwell.environments.corpora import Passage
from stepwell.errors import MissingDependency
from stepwell.scoring.answers import normalise


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found."""

    id: str
    title: str
    text: str
    score: float


class Index(Protocol):
    """Finds passages: `SearchIndex` in this process, `RemoteIndex` by a server."""

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """Up to `k` passages, best first; the same for the same query."""
        ...


class SearchIndex:
    """A BM25 index over passages (title and text). Safe to share between threads: searching changes nothing."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        """Load the index of these passages from the cache, or build it there (3 s for 22,000 passages).

        Raises:
            MissingDependency: bm25s is not installed.
        """
        self._passages = tuple(passages)
        self._bm25s = _import_bm25s()
        self._index = self._bm25s.BM25.load(str(cached(self._key(), self._build)), mmap=True)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """Up to `k` passages that share a word with `query`, best first; empty if none does."""
        return tuple(self._passages[place] for place, _ in self._best(query, k))

    def hits(self, query: str, k: int) -> tuple[Hit, ...]:
        """The same with scores, for `retrieval_app`; a passage's id is its place."""
        found = ((place, self._passages[place], score) for place, score in self._best(query, k))
        return tuple(Hit(str(place), passage.title, passage.text, score) for place, passage, score in found)

    def _best(self, query: str, k: int) -> list[tuple[int, float]]:
        tokens = self._tokenize([query])[0]
        if not tokens:
            return []
        scores = self._index.get_scores(tokens)
        matching = np.flatnonzero(scores > 0)
        best = matching[np.argsort(-scores[matching], kind="stable")[:k]]
        return [(int(place), float(scores[place])) for place in best]

    def _key(self) -> str:
        digest = hashlib.sha256()
        for passage in self._passages:
            digest.update(f"{passage.title}\0{passage.text}\0".encode())
        return f"bm25s-{self._bm25s.__version__}-{digest.hexdigest()[:16]}"

    def _build(self, folder: Path) -> None:
        index = self._bm25s.BM25()
        tokens = self._tokenize([f"{passage.title}\n{passage.text}" for passage in self._passages])
        index.index(tokens, show_progress=False)
        index.save(str(folder))

    def _tokenize(self, texts: list[str]) -> list[list[str]]:
        tokens: list[list[str]] = self._bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
        return tokens


def window(text: str, query: str, words: int) -> str:
    """The stretch of at most `words` words of `text` that has the most distinct words of `query`, those in its middle.

    Of equally good stretches the first is taken; where no word matches, that is the beginning.
    """
    split = text.split()
    wanted = set(normalise(query).split())
    matches = [(place, word) for place, word in enumerate(map(normalise, split)) if word in wanted]
    if len(split) <= words or not matches:
        return " ".join(split[:words])
    spans = [[match for match in matches if first <= match[0] < first + words] for first, _ in matches]
    best = max(spans, key=lambda span: len({word for _, word in span}))
    middle = (best[0][0] + best[-1][0] + 1) // 2
    start = min(max(middle - words // 2, 0), len(split) - words)
    return " ".join(split[start : start + words])


def _import_bm25s() -> Any:
    try:
        import bm25s  # noqa: PLC0415  # optional: only search environments need it (`stepwell[envs]`)
    except ImportError as error:
        raise MissingDependency("searching needs bm25s: pip install 'stepwell[envs]'") from error
    return bm25s
