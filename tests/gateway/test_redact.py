"""Secrets out of stored requests."""

import json
import re

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
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE/x+y=\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\\nDEK-Info: AES-256-CBC,0A\\n\\nMIIE\\n-----END RSA PRIVATE KEY-----",
    "Bearer abcdefghijklmnopqrstuv==",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_common_forms_of_secrets_are_removed_and_the_rest_stays_valid_json(secret):
    redact = Redactor(["secrets"])
    body = json.dumps({"a": [{"content": f"use {secret} please"}, 1.5, None]}).encode()
    assert json.loads(redact(body)) == {"a": [{"content": "use [redacted] please"}, 1.5, None]}
    assert redact.text(f"use {secret} please") == "use [redacted] please"


@pytest.mark.parametrize("secret", [secret for secret in SECRETS if not secret.startswith("-")])
def test_a_secret_stays_one_between_letters_of_another_script_and_in_any_spelling_of_json(secret):
    spelt = "".join(f"\\u{ord(letter):04x}" for letter in secret)
    redact = Redactor(["secrets"])
    assert redact(f'"密{spelt}钥"'.encode()).decode() == '"密[redacted]钥"'


@pytest.mark.parametrize(
    "unit",
    [
        "-----BEGIN PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY",
        "-----BEGIN A ",
        "-----END PRIVATE KEY",
        "-",
        "eyJaaaaaaaa.",
        "-eyJ",
        "bearer ",
        "bearer" + " " * 40,
        "hf_a ",
    ],
)
def test_a_long_text_of_beginnings_is_read_in_a_time_that_grows_with_its_length(unit):
    text = unit * (400_000 // len(unit))  # quadratic would take minutes
    assert Redactor(["secrets"]).text(text) in (text, re.sub(r"(eyJaaaaaaaa\.){2}eyJaaaaaaaa", "[redacted]", text))


@pytest.mark.parametrize(
    "text", ["ask-me", "sk-short", "the risk-averse-and-cautious-person", "AKIA", "bearer of news"]
)
def test_ordinary_words_stay(text):
    assert Redactor(["secrets"]).text(text) == text


@given(st.binary(max_size=200))
def test_without_patterns_nothing_changes(body):
    assert Redactor([])(body) is body


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_pattern_of_ones_own_is_removed_wherever_it_is(before, after):
    body = json.dumps({"said": f"{before}ID-77{after}", "n": 77}).encode()
    redacted = json.loads(Redactor(["ID-[0-9]+"])(body))
    assert "ID-77" not in redacted["said"]
    assert redacted["n"] == 77


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(JSON)
def test_what_matches_nothing_means_the_same_afterwards(value):
    assert json.loads(Redactor(["secrets"])(json.dumps(value).encode())) == value


@given(JSON, st.sampled_from(['"', "[{}]", ":.*", "[^a]", "true", r"\\", "[0-9]"]))
def test_no_pattern_can_break_the_json_or_touch_the_name_of_a_field(value, pattern):
    redacted = json.loads(Redactor([pattern])(json.dumps({"model": value}).encode()))
    assert list(redacted) == ["model"]


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_a_pattern_that_cannot_be_used_is_refused(pattern):
    with pytest.raises(ConfigError, match=r"gateway\.redact"):
        Redactor([pattern])
