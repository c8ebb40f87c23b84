"""A session: one trajectory, from its opening to its end, with the URL and key under which an agent's calls join it."""

import logging
from typing import Final

from stepwell.client.requests import Opened
from stepwell.types import Annotation

_log: Final = logging.getLogger(__name__)


class Place:
    """Where the calls of a session go. Either the base URL or the key is enough."""

    def __init__(self, gateway: str, opened: Opened) -> None:
        """In the trajectory that was `opened`; `gateway` is a URL without `/v1`."""
        self._gateway = gateway
        self.trajectory_id: Final = opened.trajectory_id
        self.api_key: Final = opened.api_key
        """A key for this trajectory alone, for clients of any API."""
        self.ended = False
        """Whether its end is stored."""

    @property
    def base_url(self) -> str:
        """Base URL for OpenAI's clients."""
        return f"{self._gateway}/t/{self.trajectory_id}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """Base URL for Anthropic's clients."""
        return f"{self._gateway}/t/{self.trajectory_id}"


def failure(trajectory_id: str, error: BaseException) -> Annotation:
    """The end of a session whose block raised."""
    return Annotation.end(trajectory_id, "failed", reason_of(error))


def reason_of(error: BaseException) -> str:
    """An error as text that can be stored."""
    return f"{type(error).__name__}: {error}"[:2000].replace("\0", "").encode(errors="replace").decode()


def lost(trajectory_id: str, error: BaseException) -> None:
    """The end of a failed session could not be stored; the session's own error matters more."""
    _log.warning("the end of trajectory %s could not be stored: %s", trajectory_id, error)


def kept(lease_id: str, error: BaseException) -> None:
    """The lease of a block that raised could not be given back; the block's own error matters more."""
    _log.warning("lease %s could not be given back, so its units come again when it expires: %s", lease_id, error)
