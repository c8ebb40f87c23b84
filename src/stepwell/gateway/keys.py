"""API keys: stored as hashes, each with scopes, and session keys that need no storage at all.

A key is `swk_ID_SECRET`; the file keeps ID, the SHA-256 of SECRET, and what the key may do. SECRET has 256 random bits,
so a plain hash is enough. A session key is `sw-TRAJECTORY.SIGNATURE`: whoever holds the file's own secret can mint one
for any trajectory, and check it, without writing anything down. It may call models, in that trajectory only.
"""

import base64
import hashlib
import hmac
import json
import logging
import os
import secrets
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from stepwell.errors import ConfigError, InvalidRequest, NotFound
from stepwell.gateway.callers import KEY_PREFIX

Scope = Literal["agent", "ingest", "trainer", "admin"]
"""`agent`: calls models. `ingest`: writes steps, rewards, feedback, and opens sessions. `trainer`: reads everything and
leases. `admin`: all of it, and pauses the gateway."""

SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
_KEY: Final = "swk"
_FRESH: Final = 1.0
"""Seconds for which the file is believed to be as it was."""
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who a request comes from, as its key proves."""

    name: str
    scopes: frozenset[str]
    key_id: str = ""
    """Of the key; empty without one, or for a session key."""
    trajectory_id: str | None = None
    """The only trajectory that it may call in; None: any."""
    calls_per_minute: int | None = None
    """Its quota; None: none."""

    def may(self, scope: Scope) -> bool:
        """Whether it has a scope."""
        return scope in self.scopes or "admin" in self.scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A key as it is stored."""

    id: str
    name: str
    """What a person calls it."""
    digest: str
    """SHA-256 of its secret, hex."""
    scopes: tuple[Scope, ...]
    calls_per_minute: int | None = None
    created_at: float = 0.0


class KeyRing:
    """The keys of one gateway, in one JSON file that only its owner can read.

    What others change in the file counts from a second later on.
    """

    def __init__(self, path: Path, secret: bytes, keys: Iterable[Key] = ()) -> None:
        """Keys of the file `path`; `secret` signs session keys."""
        self._path = path
        self._secret = secret
        self._keys = {key.id: key for key in keys}
        self._seen = _state(path)
        self._look_again = 0.0

    @classmethod
    def open(cls, path: Path) -> "KeyRing":
        """Read the file; one that does not exist has no keys yet.

        Raises:
            ConfigError: it is not a file of keys.
        """
        if not path.exists():
            return cls(path, secrets.token_bytes(32))
        try:
            shape = json.loads(path.read_text())
            keys = [_key(entry) for entry in shape["keys"]]
            return cls(path, bytes.fromhex(shape["session_secret"]), keys)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a file of API keys: {error!r}") from error

    @property
    def keys(self) -> tuple[Key, ...]:
        """All keys, oldest first."""
        return tuple(self._keys.values())

    def create(self, name: str, scopes: Iterable[Scope], calls_per_minute: int | None = None) -> str:
        """A new key, stored; what is returned is shown this once and can never be read again.

        Raises:
            InvalidRequest: no scope, or an unknown one.
        """
        wanted = tuple(scopes)
        if not wanted or any(scope not in SCOPES for scope in wanted):
            raise InvalidRequest(f"a key needs one or more of the scopes {', '.join(SCOPES)}")
        secret, key_id = secrets.token_urlsafe(32), secrets.token_hex(6)
        self._keys[key_id] = Key(
            id=key_id,
            name=name,
            digest=_digest(secret),
            scopes=wanted,
            calls_per_minute=calls_per_minute,
            created_at=time.time(),
        )
        self._save()
        return f"{_KEY}_{key_id}_{secret}"

    def revoke(self, key_id: str) -> None:
        """Forget a key. Raises NotFound."""
        if self._keys.pop(key_id, None) is None:
            raise NotFound(f"there is no key {key_id!r}; `stepwell keys ls` lists them")
        self._save()

    def session_key(self, trajectory_id: str) -> str:
        """The key with which calls belong to this trajectory."""
        return f"{KEY_PREFIX}{trajectory_id}.{self._signature(trajectory_id)}"

    def principal(self, text: str) -> Principal | None:
        """Whose key this is; None if it is nobody's."""
        self._follow()
        if text.startswith(KEY_PREFIX):
            return self._session(text.removeprefix(KEY_PREFIX))
        parts = text.split("_", 2)
        key = self._keys.get(parts[1]) if len(parts) == 3 and parts[0] == _KEY else None
        if key is None or not hmac.compare_digest(key.digest, _digest(parts[2])):
            return None
        scopes, quota = frozenset(key.scopes), key.calls_per_minute
        return Principal(name=key.name, scopes=scopes, key_id=key.id, calls_per_minute=quota)

    def _follow(self) -> None:
        """Read the file again if somebody changed it. One that cannot be read changes nothing."""
        now = time.monotonic()
        if now < self._look_again:
            return
        self._look_again = now + _FRESH
        state = _state(self._path)
        if state is None or state == self._seen:
            return
        self._seen = state
        try:
            other = KeyRing.open(self._path)
        except ConfigError as error:
            _log.warning("the keys stay as they were: %s", error)
            return
        self._keys, self._secret = other._keys, other._secret

    def _session(self, text: str) -> Principal | None:
        trajectory_id, _, signature = text.rpartition(".")
        if not trajectory_id or not hmac.compare_digest(_octets(signature), _octets(self._signature(trajectory_id))):
            return None
        return Principal(name=f"session {trajectory_id}", scopes=frozenset({"agent"}), trajectory_id=trajectory_id)

    def _signature(self, trajectory_id: str) -> str:
        digest = hmac.digest(self._secret, _octets(trajectory_id), "sha256")
        return base64.urlsafe_b64encode(digest[:24]).decode()

    def _save(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        shape = {"session_secret": self._secret.hex(), "keys": [asdict(key) for key in self._keys.values()]}
        partial = self._path.with_name(self._path.name + ".partial")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(shape, file, indent=2)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self._seen = _state(self._path)


def _state(path: Path) -> tuple[int, int] | None:
    """Changes when the file does; None if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _key(entry: dict[str, Any]) -> Key:
    return Key(**{**entry, "scopes": tuple(entry["scopes"])})


def _digest(secret: str) -> str:
    return hashlib.sha256(_octets(secret)).hexdigest()


def _octets(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
