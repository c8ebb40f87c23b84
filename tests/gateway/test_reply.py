from hypothesis import given
from hypothesis import strategies as st

from stepwell.gateway.dialects.base import ChatCall
from stepwell.gateway.reply import ReplyText
from tests.fakes.models import tiny_renderer

RENDERER = tiny_renderer()
TEXTS = st.text(st.sampled_from("hello ab€"), max_size=20)
STOPS = st.lists(st.text(st.sampled_from("hello ab€"), min_size=1, max_size=4), max_size=3)


def _reply(stop: list[str]) -> ReplyText:
    return ReplyText(RENDERER, ChatCall(model="m", messages=(), stop=tuple(stop)))


@given(text=TEXTS, stop=STOPS)
def test_what_is_sent_is_the_text_before_the_first_stop_string_and_is_never_taken_back(text, stop):
    reply = _reply(stop)
    sent = ""
    for token_id in RENDERER.encode(text):
        sent += reply.feed([int(token_id)])
        assert not any(s in sent for s in stop)
        if reply.stopped:
            break
    final = reply.finish()
    assert final.startswith(sent)
    assert text.startswith(final)
    assert not any(s in final for s in stop)
    assert reply.stopped == any(s in text for s in stop)
    if not reply.stopped:
        assert final == text
    else:
        assert any(text[len(final) :].startswith(s) for s in stop)


def test_text_that_cannot_begin_a_stop_string_is_sent_at_once():
    reply = _reply(["END"])
    pieces = [reply.feed([int(i)]) for i in RENDERER.encode("x EN. ENDy")]
    assert pieces == ["x", " ", "", "", "EN.", " ", "", "", "", ""]
    assert reply.finish() == "x EN. "
