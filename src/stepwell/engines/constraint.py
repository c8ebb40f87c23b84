"""Which tokens may come next when a response has to be JSON that meets a schema, by the `llguidance` library."""

import json
import threading
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from stepwell.errors import InvalidRequest, MissingDependency

if TYPE_CHECKING:
    import llguidance

_KEPT_SCHEMAS: Final = 64
"""Compiled schemas that are remembered: an agent asks for the same few again and again."""
_COMPACT: Final[Any] = {"whitespace_flexible": False}
"""Free white space lets a weak model emit nothing else until its tokens run out."""


class Constraint:
    """The state of one response; advances token by token. Not thread-safe."""

    def __init__(self, matcher: "llguidance.LLMatcher", vocabulary_size: int) -> None:
        """Begin at the first token."""
        self._matcher = matcher
        self._words = vocabulary_size

    def allowed(self) -> npt.NDArray[np.bool_]:
        """bool [W]: the tokens that may come next, at least one. Only end-of-turn ones when the value is complete.

        Raises:
            InvalidRequest: from here on the schema cannot be met, or is too complex.
        """
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        mask = np.unpackbits(bits, count=self._words, bitorder="little").view(np.bool_)
        if self._matcher.is_error() or not mask.any():
            raise _unusable(_complaint(self._matcher) or "no value can meet it")
        return mask

    def advance(self, token_id: int) -> None:
        """`token_id`, which was allowed, has been sampled."""
        self._matcher.consume_token(token_id)


class ConstraintCompiler:
    """Makes constraints for one model. Thread-safe; the vocabulary is read at the first use, which takes a second."""

    def __init__(self, tokenizer: Path, *, vocabulary_size: int, eos_ids: Sequence[int]) -> None:
        """For the model whose `tokenizer.json` is given; `vocabulary_size` is the width of its logits.

        Raises:
            MissingDependency: `llguidance` is not installed.
        """
        try:
            import llguidance  # noqa: PLC0415, F401  # an extra: engines work without it
        except ImportError as error:
            raise MissingDependency("JSON schemas need llguidance: pip install 'stepwell[train]'") from error
        self._tokenizer = tokenizer
        self._words = vocabulary_size
        self._eos_ids = list(eos_ids)
        self._lock = threading.Lock()
        self._compiled = lru_cache(maxsize=_KEPT_SCHEMAS)(self._compile)

    def compile(self, json_schema: str) -> Constraint:
        """A constraint for one response; takes milliseconds, for a very large schema up to seconds.

        Raises:
            InvalidRequest: it is no JSON schema, it uses a keyword that is not supported, no value can meet it, it is
                too big, or the model's tokenizer cannot be constrained.
        """
        with self._lock:
            return Constraint(self._compiled(json_schema).deep_copy(), self._words)

    def _compile(self, json_schema: str) -> "llguidance.LLMatcher":
        from llguidance import LLMatcher, LLParserLimits  # noqa: PLC0415  # an extra

        try:
            schema = json.loads(json_schema)
            if not isinstance(schema, dict | bool):
                raise ValueError("it must be an object")
            # as the library wants to see it: it pastes the text into a grammar
            grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema), defaults=_COMPACT)
        except (ValueError, RecursionError) as error:
            raise _unusable(str(error)) from error
        limits = LLParserLimits(verbose_errors=False)  # its state and the schema again are of no use to a client
        matcher = LLMatcher(self._vocabulary, grammar, log_level=0, limits=limits)
        self._begin(matcher)
        return matcher

    def _begin(self, matcher: "llguidance.LLMatcher") -> None:
        """Refuse what would fail at the first tokens: at the first mask, or at that behind the text which is forced."""
        if not matcher.is_error():
            matcher.compute_bitmask()
        ahead = matcher.deep_copy()
        if not ahead.is_error():
            ahead.consume_tokens(self._vocabulary.tokenize_bytes(ahead.compute_ff_bytes()))
            ahead.compute_bitmask()
        if ahead.is_error():
            raise _unusable(_complaint(ahead))

    @cached_property
    def _vocabulary(self) -> "llguidance.LLTokenizer":
        from llguidance import LLTokenizer  # noqa: PLC0415  # an extra

        try:
            text = self._tokenizer.read_text(encoding="utf-8")
            return LLTokenizer(text, n_vocab=self._words, eos_token=self._eos_ids)
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"this model's tokenizer does not allow JSON schemas: {error}") from error


def _complaint(matcher: "llguidance.LLMatcher") -> str:
    """The first line of what the library says; empty if all is well."""
    first = matcher.get_error().partition("\n")[0]
    return "no value can meet it" if first == "NoExtensionBias" else first


def _unusable(why: str) -> InvalidRequest:
    return InvalidRequest(f"the JSON schema cannot be used: {why}")
