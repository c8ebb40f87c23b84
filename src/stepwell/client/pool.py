"""A pool in another process, reached through the gateway's routes: the writing half of the `Pool` protocol."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from stepwell.client.requests import only
from stepwell.client.sync import Client
from stepwell.errors import InvalidRequest, PoolError, StepwellError
from stepwell.pool.base import Receipt
from stepwell.types import Record


class PoolClient:
    """`append` and `put` of a `Pool` over HTTP. Calls are sent one after the other, in the order they were made."""

    def __init__(self, base_url: str, api_key: str = "", *, timeout: float = 60.0, retries: int = 2) -> None:
        """Talk to the gateway at `base_url`; all arguments as of `Client`."""
        self._client = Client(base_url, api_key, timeout=timeout, retries=retries)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pool-client")

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """As `Pool.append`, except that records before one that a lost connection hit may be stored.

        Raises:
            PoolError: (in the future) the gateway cannot be reached, or its pool failed.
        """
        return self._worker.submit(self._send, tuple(records))

    def put(self, *records: Record) -> None:
        """`append`, wait, and raise the first refusal."""
        only(self.append(records).result())

    def close(self) -> None:
        """Send what was appended and close the connection."""
        self._worker.shutdown(wait=True)
        self._client.close()

    def _send(self, records: tuple[Record, ...]) -> list[Receipt]:
        try:
            return self._client.submit(records)
        except (PoolError, InvalidRequest):
            raise
        except StepwellError as error:
            raise PoolError(str(error)) from error
