"""The wire formats of chat APIs, one file or folder each."""

from typing import Final

from stepwell.gateway.dialects.base import Dialect
from stepwell.gateway.dialects.chat import ChatDialect
from stepwell.gateway.dialects.completions import CompletionsDialect
from stepwell.gateway.dialects.messages import MessagesDialect
from stepwell.gateway.dialects.responses import ResponsesDialect

DIALECTS: Final[tuple[Dialect, ...]] = (ChatDialect(), CompletionsDialect(), ResponsesDialect(), MessagesDialect())
"""All that are served."""
