"""Hypothesis strategies: replies in pieces, and JSON that is almost a request."""

import copy
import json

from hypothesis import strategies as st

from stepwell.rendering.pieces import CallArguments, CallClosed, CallOpened, Piece, ReasoningPiece, TextPiece

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a\u2028b", "x\u0085y", "é\r\n"]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(texts.filter(bool), json_values, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@st.composite
def _cut(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def _call(draw: st.DrawFn, number: int) -> list[Piece]:
    name = draw(st.sampled_from(["search", "run_code"]))
    parts = draw(_cut(draw(arguments)))
    return [CallOpened(f"call-{number}", name), *map(CallArguments, parts), CallClosed()]


@st.composite
def replies(draw: st.DrawFn) -> list[Piece]:
    """Pieces of a whole reply: thoughts, words and calls in any order."""
    pieces: list[Piece] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(["thought", "words", "call"]), max_size=6))):
        match kind:
            case "thought":
                pieces += map(ReasoningPiece, draw(st.lists(texts, max_size=3)))
            case "words":
                pieces += map(TextPiece, draw(st.lists(texts, max_size=3)))
            case _:
                pieces += draw(_call(number))
    return pieces


def _places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in _places(child, (*path, key)))]


@st.composite
def spoilt(draw: st.DrawFn, body: dict) -> object:
    """A request in which something at one or two places is replaced by any JSON."""
    spoilt = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(_places(spoilt)))
        if not path:
            return draw(json_values)
        *way, last = path
        holder = spoilt
        for key in way:
            holder = holder[key]
        holder[last] = draw(json_values)
    return spoilt
