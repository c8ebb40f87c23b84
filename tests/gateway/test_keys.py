"""API keys: nothing on disk opens anything, and a session key opens one trajectory."""

import json
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import ConfigError, InvalidRequest, NotFound
from stepwell.gateway import keys
from stepwell.gateway.keys import SCOPES, KeyRing


@pytest.fixture
def path(tmp_path):
    return tmp_path / "private" / "keys.json"


def test_a_key_is_its_owners_with_the_scopes_that_it_was_given(path):
    ring = KeyRing.open(path)
    principal = ring.principal(ring.create("ci", ["ingest", "trainer"], calls_per_minute=7))
    assert (principal.name, principal.scopes, principal.calls_per_minute) == ("ci", {"ingest", "trainer"}, 7)
    assert [principal.may(scope) for scope in SCOPES] == [False, True, True, False]


def test_admin_may_do_everything(path):
    ring = KeyRing.open(path)
    assert all(ring.principal(ring.create("root", ["admin"])).may(scope) for scope in SCOPES)


def test_the_file_holds_no_secret_of_a_key_and_only_its_owner_can_read_it(path):
    ring = KeyRing.open(path)
    key = ring.create("ci", ["agent"])
    assert key.split("_", 2)[2] not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["keys.json"]


def test_keys_and_session_keys_outlive_the_process(path):
    ring = KeyRing.open(path)
    key, session = ring.create("ci", ["agent"]), ring.session_key("t1")
    again = KeyRing.open(path)
    assert again.principal(key) == ring.principal(key)
    assert again.principal(session).trajectory_id == "t1"
    assert [(k.name, k.scopes, k.digest) for k in again.keys] == [(k.name, k.scopes, k.digest) for k in ring.keys]


def test_a_revoked_key_is_nobodys(path):
    ring = KeyRing.open(path)
    key = ring.create("ci", ["agent"])
    ring.revoke(ring.keys[0].id)
    assert (ring.principal(key), KeyRing.open(path).keys) == (None, ())
    with pytest.raises(NotFound):
        ring.revoke("nobody")


def test_what_others_do_to_the_file_counts_for_a_gateway_that_runs(path, monkeypatch):
    monkeypatch.setattr(keys, "_FRESH", 0.0)
    serving = KeyRing.open(path)
    serving.create("first", ["agent"])
    later = KeyRing.open(path).create("later", ["trainer"])
    assert serving.principal(later).name == "later"
    administering = KeyRing.open(path)
    administering.revoke(administering.keys[1].id)
    assert serving.principal(later) is None


def test_a_file_that_somebody_broke_leaves_the_keys_as_they_were(path, monkeypatch, caplog):
    monkeypatch.setattr(keys, "_FRESH", 0.0)
    ring = KeyRing.open(path)
    key = ring.create("ci", ["agent"])
    path.write_text("{")
    assert ring.principal(key).name == "ci"
    assert "the keys stay as they were" in caplog.text
    path.unlink()
    assert ring.principal(key).name == "ci"


@pytest.mark.parametrize("scopes", [[], ["root"], ["agent", "root"]])
def test_a_key_needs_known_scopes(path, scopes):
    with pytest.raises(InvalidRequest, match="scopes agent, ingest"):
        KeyRing.open(path).create("ci", scopes)
    assert not path.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"keys": [{}], "session_secret": "00"}', '{"keys": [], "session_secret": "x"}']
)
def test_a_file_that_holds_no_keys_is_refused(path, text):
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(ConfigError, match="not a file of API keys"):
        KeyRing.open(path)


def test_a_session_key_calls_models_in_its_trajectory_and_does_nothing_else(path):
    principal = KeyRing.open(path).principal("sw-t1")
    assert principal is None
    ring = KeyRing.open(path)
    principal = ring.principal(ring.session_key("a.b"))
    assert (principal.trajectory_id, principal.scopes) == ("a.b", {"agent"})


def test_a_session_key_of_another_gateway_is_nobodys(path, tmp_path):
    other = KeyRing.open(tmp_path / "other.json")
    assert KeyRing.open(path).principal(other.session_key("t1")) is None


@given(st.text(st.characters(categories=None), max_size=40), st.sampled_from(["", "swk_", "sw-", "swk_x_", "sw-t1."]))
def test_whatever_else_is_sent_as_a_key_is_nobodys(tmp_path_factory, text, prefix):
    ring = KeyRing.open(tmp_path_factory.getbasetemp() / "none.json")
    assert ring.principal(prefix + text) is None


def test_a_key_with_one_character_changed_is_nobodys(path):
    ring = KeyRing.open(path)
    for key in (ring.create("ci", ["agent"]), ring.session_key("t1")):
        for place in range(len(key)):
            changed = key[:place] + ("A" if key[place] != "A" else "B") + key[place + 1 :]
            assert ring.principal(changed) is None, json.dumps([key, changed])
