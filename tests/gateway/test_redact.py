"""Secrets out of stored requests."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import ConfigError
from stepwell.gateway.redact import Redactor

SECRETS = [
    "sk-proj-abcDEF0123456789_abc",
    "sk-ant-api03-abcdefghijklmnop",
    "swk_0123456789ab_abcdefghijklmnopqrstuvwxyz",
    "ghp_abcdefghijklmnopqrstuvwx",
    "hf_abcdefghijklmnopqrstuvwx",
    "xoxb-1234567890-abcdefghij",
    "AKIAABCDEFGHIJKLMNOP",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4",
    "-----BEGIN RSA PRIVATE KEY-----\\nMIIE-x\\n-----END RSA PRIVATE KEY-----",
    "Bearer abcdefghijklmnopqrstuv==",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_common_forms_of_secrets_are_removed_and_the_rest_stays_valid_json(secret):
    body = f'{{"content": "use {secret} please"}}'.encode()
    assert json.loads(Redactor(["secrets"])(body)) == {"content": "use [redacted] please"}


@pytest.mark.parametrize(
    "text", ["ask-me", "sk-short", "the risk-averse-and-cautious-person", "AKIA", "bearer of news"]
)
def test_ordinary_words_stay(text):
    assert Redactor(["secrets"])(text.encode()) == text.encode()


@given(st.binary(max_size=200))
def test_without_patterns_nothing_changes(body):
    assert Redactor([])(body) == body


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_pattern_of_ones_own_is_removed_wherever_it_is(before, after):
    body = f"{before}ID-77{after}".encode()
    assert b"ID-77" not in Redactor(["ID-[0-9]+"])(body)


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_a_pattern_that_cannot_be_used_is_refused(pattern):
    with pytest.raises(ConfigError, match=r"gateway\.redact"):
        Redactor([pattern])
