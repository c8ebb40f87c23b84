"""Tokens become markup without becoming code."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.dashboard.tokens import colour, tokens_html
from stepwell.types import Step


class _Reader(HTMLParser):
    """What a browser would make of it: the tags with their attributes, and the text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def _read(markup: str) -> _Reader:
    reader = _Reader()
    reader.feed(markup)
    reader.close()
    return reader


def _step(*logprobs: float) -> Step:
    ids = range(100, 100 + len(logprobs))
    return Step(trajectory_id="t", index=0, prompt_ids=[1], response_ids=[*ids], logprobs=logprobs)


@given(st.text(alphabet=st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_of_a_token_stays_text(text: str) -> None:
    page = _read(tokens_html(_step(-1.0), lambda _: text))
    assert [tag for tag, _ in page.tags] == ["span"]
    assert set(page.tags[0][1]) == {"title", "style"}
    assert page.text == text


def test_a_title_has_the_figures_of_its_token() -> None:
    page = _read(tokens_html(_step(0.0, -1.5), lambda ids: f"<{ids[0]}>\n"))
    assert page.tags[1][1]["title"] == "token 1: id 101, logprob -1.500, p 22.3%, text '<101>\\n'"
    assert page.text == "<100>⏎\n<101>⏎\n"


def test_without_a_decoder_tokens_are_shown_as_ids() -> None:
    page = _read(tokens_html(_step(-0.1, -0.2), None))
    assert page.text == "⟨100⟩⟨101⟩"
    assert "text" not in str(page.tags[0][1]["title"])


def test_a_step_without_tokens_has_no_markup() -> None:
    assert tokens_html(_step(), None) == ""


@pytest.mark.parametrize(("logprob", "opacity"), [(0.0, 0.0), (0.5, 0.0), (-2.5, 0.375), (-5.0, 0.75), (-80.0, 0.75)])
def test_the_colour_grows_with_surprise_up_to_a_bound(logprob: float, opacity: float) -> None:
    assert float(colour(logprob).rpartition(",")[2].strip(" )")) == pytest.approx(opacity, abs=0.006)
