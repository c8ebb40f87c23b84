"""The wire formats of chat APIs, one file or folder each."""

from typing import Final

from stepwell.gateway.dialects.base import Dialect
from stepwell.gateway.dialects.chat import ChatDialect, Tokenize
from stepwell.gateway.dialects.completions import CompletionsDialect
from stepwell.gateway.dialects.messages import CountTokens, MessagesDialect
from stepwell.gateway.dialects.responses import ResponsesDialect

DIALECTS: Final[tuple[Dialect, ...]] = (ChatDialect(), CompletionsDialect(), ResponsesDialect(), MessagesDialect())
"""All that are served."""
COUNTS: Final[tuple[CountTokens | Tokenize, ...]] = (CountTokens(), Tokenize())
"""The doors that say how long a prompt would be."""
