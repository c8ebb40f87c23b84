"""One thread that writes: it commits what many callers submitted in one transaction, and only then tells them.

A durable commit costs a wait for the disk, whatever it holds, so the operations that arrive during one commit share the
next (group commit). Adjacent appends are judged as one batch, which changes no verdict, since records only depend on
those before them.

A database in the network may go away, even while it commits, so that nobody knows whether it did. Then all of the batch
runs again once it is back: every operation is idempotent by the ids that it was submitted with.
"""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from stepwell.errors import PoolError
from stepwell.pool import ingest
from stepwell.pool.base import Receipt
from stepwell.pool.patience import Patience
from stepwell.pool.tokens import StepPacker
from stepwell.types import Record

_T = TypeVar("_T")

_RECORDS_PER_COMMIT: Final = 4096
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class _Append:
    future: Future[list[Receipt]]
    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    future: Future[Any]
    work: Callable[[sa.Connection], Any]


_Operation = _Append | _Call
_Outcome = object
"""What an operation's future gets: a result, or an exception to raise."""


class Writer:
    """Runs operations in transactions of `engine`, in the order in which they were submitted."""

    def __init__(self, engine: sa.Engine, name: str, patience: Patience) -> None:
        self._engine = engine
        self._name = name
        self._patience = patience
        self._packer = StepPacker()
        self._connection: sa.Connection | None = None  # used by the thread only, as is the next
        self._begun = False  # whether the last transaction got so far that a refusal concerns what it was to do
        self._queue: queue.SimpleQueue[_Operation | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"pool-writer {name}", daemon=True)
        self._thread.start()

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """Append `records`; the future resolves after they are on disk."""
        future: Future[list[Receipt]] = Future()
        self._submit(_Append(future, tuple(records)))
        return future

    def call(self, work: Callable[[sa.Connection], _T]) -> Future[_T]:
        """Run `work` in a write transaction; the future resolves after its commit. If `work` raises, it is undone.

        It may run more than once, also after a run that was committed, and must then give what it gave before.
        """
        future: Future[_T] = Future()
        self._submit(_Call(future, work))
        return future

    def close(self) -> None:
        """Finish what was submitted, and stop. Idempotent."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join()
        self._engine.dispose()

    def _submit(self, operation: _Operation) -> None:
        with self._lock:
            if not self._closed:
                self._queue.put(operation)
                return
        operation.future.set_exception(PoolError(f"{self._name}: the pool is closed"))

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._disconnect()

    def _work(self) -> None:
        for operations in self._batches():
            live = [operation for operation in operations if operation.future.set_running_or_notify_cancel()]
            try:
                outcomes = self._commit(live)
            except Exception as error:  # the thread must live on, and nobody may wait for ever
                _log.exception("the pool's writer met an error that it does not know")
                self._packer.forget()
                outcomes = [error] * len(live)
            for operation, outcome in zip(live, outcomes, strict=True):
                _resolve(operation.future, outcome)

    def _batches(self) -> Iterator[list[_Operation]]:
        """What has been submitted since the last commit, until the pool is closed."""
        while (operation := self._queue.get()) is not None:
            batch, records = [operation], _weight(operation)
            while records < _RECORDS_PER_COMMIT and not self._queue.empty():
                following = self._queue.get()
                if following is None:
                    yield batch
                    return
                batch.append(following)
                records += _weight(following)
            yield batch

    def _commit(self, operations: Sequence[_Operation]) -> list[_Outcome]:
        """Run operations in one transaction; if the storage refuses it, each in its own, to spare the innocent."""
        try:
            return self._patience.run(lambda: self._attempt(operations))
        except PoolError as failure:
            return [failure] * len(operations)
        except SQLAlchemyError as error:
            if self._begun and len(operations) > 1:
                return [outcome for operation in operations for outcome in self._commit([operation])]
            return [storage_error(self._name, error)] * len(operations)

    def _attempt(self, operations: Sequence[_Operation]) -> list[_Outcome]:
        """Run operations in one transaction. Raises SQLAlchemyError: the storage refused one of them, or is away."""
        self._begun = False
        try:
            connection = self._connected()
            with connection.begin():
                self._begun = True
                if len(operations) == 1:
                    return self._outcomes(connection, operations)
                runs = [list(run) for _, run in groupby(operations, key=_mergeable)]
                return [outcome for run in runs for outcome in self._isolated(connection, run)]
        except SQLAlchemyError:
            self._packer.forget()
            self._disconnect()
            raise
        except Exception as error:
            self._packer.forget()
            return [error] * len(operations)

    def _connected(self) -> sa.Connection:
        """The one connection of this writer: to take another from the engine for each commit costs as much again."""
        if self._connection is None:
            self._connection = self._engine.connect()
        return self._connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                connection.invalidate()  # whatever state it is in, nobody gets it again
                connection.close()

    def _isolated(self, connection: sa.Connection, run: Sequence[_Operation]) -> list[_Outcome]:
        """Run one call, or adjacent appends as one, behind a savepoint."""
        try:
            with connection.begin_nested():
                return self._outcomes(connection, run)
        except SQLAlchemyError:
            raise  # the database may have ended the transaction by itself
        except Exception as error:
            self._packer.forget()
            if len(run) > 1:
                return [outcome for operation in run for outcome in self._isolated(connection, [operation])]
            return [error]

    def _outcomes(self, connection: sa.Connection, run: Sequence[_Operation]) -> list[_Outcome]:
        first = run[0]
        if isinstance(first, _Call):
            return [first.work(connection)]
        appends = [operation for operation in run if isinstance(operation, _Append)]
        records = [record for operation in appends for record in operation.records]
        receipts = iter(ingest.append(connection, records, self._packer))
        return [[next(receipts) for _ in operation.records] for operation in appends]


def storage_error(name: str, error: SQLAlchemyError, hint: str = "") -> PoolError:
    """The error of the pool called `name` for one of its database, with the database's own words and then `hint`."""
    failure = PoolError(f"{name}: {str(getattr(error, 'orig', None) or error).strip()}{hint}")
    failure.__cause__ = error
    return failure


def _weight(operation: _Operation) -> int:
    return len(operation.records) if isinstance(operation, _Append) else 1


def _mergeable(operation: _Operation) -> object:
    """Equal for adjacent appends, and for nothing else."""
    return "append" if isinstance(operation, _Append) else operation


def _resolve(future: Future[Any], outcome: _Outcome) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
