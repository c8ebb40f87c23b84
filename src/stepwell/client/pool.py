"""A pool in another process, reached through the gateway's routes: the parts of the `Pool` protocol by which records
are stored and consumed."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from stepwell.client import feed
from stepwell.client.requests import only
from stepwell.client.sync import Client
from stepwell.errors import InvalidRequest, PoolError, StepwellError
from stepwell.pool.base import Receipt
from stepwell.pool.lease import Lease, LeaseSpec
from stepwell.types import Record


class PoolClient:
    """`append`, `put` and the leases of a `Pool` over HTTP. Records are sent in the order in which they were given."""

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

    def lease(self, spec: LeaseSpec) -> Lease:
        """As `Pool.lease`: whole groups. Raises Unavailable as well."""
        for turn in feed.turned(spec, spec.wait):
            lease = self._client.send(feed.units(turn))
            if lease.groups:
                break
        return lease

    def extend(self, lease_id: str, seconds: float) -> float:
        """As `Pool.extend`."""
        return self._client.send(feed.extend(lease_id, seconds))

    def acknowledge(self, lease_id: str) -> None:
        """As `Pool.acknowledge`."""
        self._client.send(feed.ack(lease_id))

    def release(self, lease_id: str) -> None:
        """As `Pool.release`."""
        self._client.send(feed.nack(lease_id, ""))

    def release_all(self, consumer: str) -> int:
        """As `Pool.release_all`."""
        return self._client.nack_all(consumer)

    def drop_group(self, group_id: str, reason: str) -> None:
        """As `Pool.drop_group`."""
        self._client.drop_group(group_id, reason)

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
