"""The credit of each update: one compact row, written once, read when somebody asks what an update learnt from.

It names steps by their ids and refers to nothing, so it outlives them; it goes by its own age and version.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import sqlalchemy as sa
import zstandard

from stepwell.errors import NotFound, PoolError
from stepwell.pool.credit import StepCredit
from stepwell.pool.keeping import Retention
from stepwell.pool.schema import credits, updates

_LEVEL: Final = 3
_decode: Final = msgspec.msgpack.Decoder(list[StepCredit]).decode


def packed(steps: Sequence[StepCredit]) -> bytes:
    """As it is stored: MessagePack, zstd with a checksum, so that damage is noticed."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True)
    return compressor.compress(msgspec.msgpack.encode(list(steps)))


def record(connection: sa.Connection, run: str, version: int, blob: bytes, now: float) -> None:
    """See `Pool.record_credit`; `now` is Unix time in seconds."""
    connection.execute(sa.delete(credits).where(credits.c.run == run, credits.c.policy_version == version))
    row = {"run": run, "policy_version": version, "created_at": now, "steps": blob}
    connection.execute(sa.insert(credits), [row])


def find(connection: sa.Connection, run: str, version: int) -> list[StepCredit]:
    """See `Pool.credit`."""
    own = sa.select(credits.c.steps).where(credits.c.run == run, credits.c.policy_version == version)
    blob = connection.scalar(own)
    if blob is None:
        raise NotFound(f"nobody recorded what version {version} of {run!r} was trained on")
    return _unpacked(run, version, blob)


def damaged(connection: sa.Connection) -> Iterator[tuple[str, str]]:
    """(run, what is wrong) of each row that cannot be read."""
    for row in connection.execute(sa.select(credits)):
        try:
            _unpacked(row.run, row.policy_version, row.steps)
        except PoolError as error:
            yield row.run, str(error)


def forget(connection: sa.Connection, kept: Retention, now: float) -> None:
    """Forget what is too old by time or by version; nothing where only a selection may go."""
    if kept.selection is not None:
        return
    if kept.max_age is not None:
        connection.execute(sa.delete(credits).where(credits.c.created_at < now - kept.max_age))
    if kept.max_lag is not None:
        newest = connection.scalar(sa.select(sa.func.max(updates.c.policy_version))) or 0
        connection.execute(sa.delete(credits).where(credits.c.policy_version < newest - kept.max_lag))


def _unpacked(run: str, version: int, blob: bytes) -> list[StepCredit]:
    try:
        return _decode(zstandard.ZstdDecompressor().decompress(blob))
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise PoolError(f"the credit of version {version} of {run!r} is damaged: {error}") from error
