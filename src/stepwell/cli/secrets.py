"""A recipe as it may be shown: without what nobody else needs to see."""

from typing import Any, Final

from stepwell.pool.store import without_password

_SECRET: Final = ("key", "password", "secret", "token")
"""Last words of the names of settings that hold one."""
HIDDEN: Final = "***"


def without_secrets(value: Any, name: str = "") -> Any:
    """Settings, as JSON, with keys, passwords and the like hidden, those in the URL of a database too."""
    if isinstance(value, dict):
        return {key: without_secrets(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_secrets(inner, name) for inner in value]
    if isinstance(value, str) and value:
        return HIDDEN if name.rpartition("_")[2] in _SECRET else without_password(value)
    return value
