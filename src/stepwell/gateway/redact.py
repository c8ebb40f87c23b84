"""Secrets out of what is stored: patterns that a person asks for, replaced in the recorded request.

The token ids of a prompt stay exact, or the step could not be trained on: keep secrets out of prompts where you can.
Headers, and with them API keys, are never stored at all.
"""

import re
from collections.abc import Sequence
from typing import Final

from stepwell.errors import ConfigError

_SECRETS: Final = (
    r"\b(?:sk|pk|rk)-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic, Stripe and their like
    r"\bswk_[0-9a-f]{12}_[A-Za-z0-9_-]{20,}",  # our own
    r"\b(?:ghp|gho|ghu|ghs|github_pat|glpat|hf|xox[abprs])[_-][A-Za-z0-9_-]{16,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}",  # JSON web tokens
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?:[^-]|-(?!----END))*-----END [A-Z ]*PRIVATE KEY-----",
    r"(?i)\bbearer\s+[A-Za-z0-9._~+/-]{16,}=*",
)
_MASK: Final = b"[redacted]"


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
        """`body` without what must not be stored."""
        for pattern in self._patterns:
            body = pattern.sub(_MASK, body)
        return body


def _compiled(pattern: str) -> re.Pattern[bytes]:
    try:
        compiled = re.compile(pattern.encode())
    except re.error as error:
        raise ConfigError(f"gateway.redact: {pattern!r} is not a regular expression: {error}") from error
    if compiled.search(b""):
        raise ConfigError(f"gateway.redact: {pattern!r} matches the empty text, so everything")
    return compiled
