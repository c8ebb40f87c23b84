"""`stepwell keys`: a secret is shown once and never stored."""

import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stepwell.gateway.keys import KeyRing
from tests.cli.processes import Finished

Command = Callable[..., Finished]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "keys.json"


def create(command: Command, file: Path, *more: str) -> str:
    done = command("keys", "create", "--name", "laptop", "--scope", "agent", *more, "--file", str(file))
    assert done.code == 0
    return done.out.strip()


def test_create_prints_a_key_that_opens_and_the_file_holds_only_its_hash(command: Command, file: Path) -> None:
    key = create(command, file, "--scope", "ingest", "--calls-per-minute", "60")
    principal = KeyRing.open(file).principal(key)
    assert principal is not None
    assert (principal.name, principal.scopes, principal.calls_per_minute) == ("laptop", {"agent", "ingest"}, 60)
    assert key.split("_", 2)[2] not in file.read_text()


def test_only_its_owner_can_read_the_file(command: Command, file: Path) -> None:
    create(command, file)
    create(command, file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_ls_shows_what_a_key_may_do_and_no_secret(command: Command, file: Path) -> None:
    key = create(command, file)
    listed = command("keys", "ls", "--file", str(file)).out
    _, key_id, secret = key.split("_", 2)
    (row,) = [line for line in listed.splitlines() if key_id in line]
    assert [cell.strip() for cell in row.strip("│ ").split("│")][:3] == [key_id, "laptop", "agent"]
    assert secret not in listed


def test_a_revoked_key_opens_nothing_and_cannot_be_revoked_again(command: Command, file: Path) -> None:
    kept, gone = create(command, file), create(command, file)
    assert command("keys", "revoke", gone.split("_")[1], "--file", str(file)).code == 0
    ring = KeyRing.open(file)
    assert (ring.principal(gone), ring.principal(kept) is not None) == (None, True)
    again = command("keys", "revoke", gone.split("_")[1], "--file", str(file))
    assert (again.code, "there is no key" in again.err) == (1, True)


def test_session_keys_outlive_a_change_of_the_keys(command: Command, file: Path) -> None:
    create(command, file)
    minted = KeyRing.open(file).session_key("run-1")
    create(command, file)
    principal = KeyRing.open(file).principal(minted)
    assert principal is not None
    assert principal.trajectory_id == "run-1"


@pytest.mark.parametrize("scope", ["root", ""])
def test_an_unknown_scope_makes_no_file(command: Command, file: Path, scope: str) -> None:
    done = command("keys", "create", "--name", "x", "--scope", scope, "--file", str(file))
    assert (done.code, "one or more of the scopes" in done.err, file.exists()) == (1, True, False)
