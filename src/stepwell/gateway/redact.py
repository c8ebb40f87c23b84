"""Secrets out of what is stored: patterns that a person asks for, replaced in the recorded request and answer.

They are looked for in the strings of the parsed body, so that an escape hides nothing and a pattern breaks no JSON.
The token ids of a prompt stay exact, or the step could not be trained on: keep secrets out of prompts where you can.
Headers, and with them API keys, are never stored at all.
"""

import re
from collections.abc import Sequence
from typing import Any, Final

from pydantic_core import to_json

from stepwell.errors import ConfigError
from stepwell.gateway.transport import parse_json

# Each reads any text in linear time: none may begin again within a run that an earlier beginning read in vain, which is
# why a web token begins a run and a key's body ends at five dashes. `(?a)`: other scripts' letters are no part of keys.
_SECRETS: Final = (
    r"(?a)\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, Stripe and their like
    r"(?a)\bswk_[0-9a-f]{12}_[A-Za-z0-9_-]{20,}",  # our own
    r"(?a)\b(?:ghp|gho|ghu|ghs|github_pat|glpat|hf|xox[abprs])[_-][A-Za-z0-9_-]{16,}",
    r"(?a)\bAKIA[0-9A-Z]{16}\b",
    r"(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----))*+-----END [A-Z ]*PRIVATE KEY-----",
    r"(?ai)\bbearer\s+[A-Za-z0-9._~+/-]{16,}=*",
)
_MASK: Final = "[redacted]"


class Redactor:
    """Replaces what matches any of its patterns."""

    def __init__(self, patterns: Sequence[str]) -> None:
        """Regular expressions; the word `secrets` stands for a list of common forms of keys and tokens.

        Raises:
            ConfigError: a pattern does not compile, or matches the empty text.
        """
        spelt = [part for pattern in patterns for part in (_SECRETS if pattern == "secrets" else (pattern,))]
        self._patterns = [_compiled(pattern) for pattern in spelt]

    def __call__(self, body: bytes) -> bytes:
        """`body`, which is JSON, without what must not be stored in its strings; names of fields are left alone.

        Raises:
            InvalidRequest: there are patterns, and it is not JSON.
        """
        return to_json(self._walk(parse_json(body))) if self._patterns else body

    def text(self, text: str) -> str:
        """`text` without what must not be stored."""
        for pattern in self._patterns:
            text = pattern.sub(_MASK, text)
        return text

    def _walk(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._walk(item) for item in value]
        if isinstance(value, dict):
            return {name: self._walk(item) for name, item in value.items()}
        return value


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        compiled = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"gateway.redact: {pattern!r} is not a regular expression: {error}") from error
    if compiled.search(""):
        raise ConfigError(f"gateway.redact: {pattern!r} matches the empty text, so everything")
    return compiled
