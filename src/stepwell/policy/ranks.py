"""The processes that train one policy together, and what they tell each other. One by itself has nobody to tell.

All ranks make the same calls in the same order: each of these waits for the others.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from stepwell.errors import ConfigError, InvalidRequest

T = TypeVar("T")
_PATIENCE: Final = timedelta(days=30)
"""How long ranks wait for the first to decide something: while it collects rollouts, they have nothing to do."""


class Ranks:
    """A process by itself, where everything is as it is. What several do differently: `JoinedRanks`."""

    rank: int = 0
    """Which of them this process is."""
    count: int = 1

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks of tensors of one shape."""
        return tensor

    def largest(self, tensor: Tensor) -> Tensor:
        """The largest over all ranks, element by element, of tensors of one shape."""
        return tensor

    def exchanged(self, mine: T) -> list[T]:
        """What each rank has, in their order; it can be pickled."""
        return [mine]

    def decided(self, make: Callable[[], T]) -> T:
        """What `make` gives, or raises, on the first rank, which alone calls it; it can be pickled."""
        return make()

    def copy_first(self, tensor: Tensor) -> None:
        """Overwrite `tensor` with that of the first rank."""

    def refuse_difference(self, fingerprint: Callable[[], int]) -> None:
        """Raise InvalidRequest on all ranks if the fingerprint of what they were given differs.

        What they would do with it differs too, and then they wait for each other for ever.
        """


ALONE: Final = Ranks()


class JoinedRanks(Ranks):
    """One of several processes that have joined (see `joined`)."""

    def __init__(self) -> None:
        """Of the process group that there is."""
        self.rank = dist.get_rank()
        self.count = dist.get_world_size()
        self._patient = dist.new_group(backend="gloo", timeout=_PATIENCE)

    def total(self, tensor: Tensor) -> Tensor:
        """See `Ranks`."""
        return self._reduced(tensor, dist.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """See `Ranks`."""
        return self._reduced(tensor, dist.ReduceOp.MAX)

    def exchanged(self, mine: T) -> list[T]:
        """See `Ranks`."""
        every: list[T] = [mine] * self.count
        dist.all_gather_object(every, mine, group=self._patient)
        return every

    def decided(self, make: Callable[[], T]) -> T:
        """See `Ranks`."""
        box: list[Callable[[], T]] = [make]
        if self.rank == 0:
            box = [_outcome(make)]
        dist.broadcast_object_list(box, src=0, group=self._patient)
        return box[0]()

    def copy_first(self, tensor: Tensor) -> None:
        """See `Ranks`."""
        dist.broadcast(tensor, src=0)

    def refuse_difference(self, fingerprint: Callable[[], int]) -> None:
        """See `Ranks`."""
        if len(set(self.exchanged(fingerprint()))) > 1:
            raise InvalidRequest("the ranks of one learner were given different samples: give all of them the same")

    def _reduced(self, tensor: Tensor, how: dist.ReduceOp.RedOpType) -> Tensor:
        result = tensor.clone()
        dist.all_reduce(result, how)
        return result


def _outcome(make: Callable[[], T]) -> Callable[[], T]:
    """Does again what `make` did, in any process."""
    try:
        return partial(_given, make())
    except Exception as error:  # raised on every rank
        return partial(_raised, error)


def _given(value: T) -> T:
    return value


def _raised(error: Exception) -> NoReturn:
    raise error


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a process stands among those that train one policy."""

    rank: int
    count: int
    address: str
    """Where all of them meet: `tcp://host:port` of the first, or `file:///path` of a file that is not there yet."""
    seconds: float = 1800.0
    """How long a rank waits for the others within an update before it gives up."""

    @classmethod
    def of_environment(cls) -> "Place":
        """As torchrun and others that start ranks tell it: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.

        Raises:
            ConfigError: one of them is missing.
        """
        told = os.environ
        try:
            address = f"tcp://{told['MASTER_ADDR']}:{told['MASTER_PORT']}"
            return cls(rank=int(told["RANK"]), count=int(told["WORLD_SIZE"]), address=address)
        except KeyError as error:
            raise ConfigError(f"the environment does not say which rank this is: {error.args[0]} is not set") from error


@contextmanager
def joined(place: Place) -> Iterator[Ranks]:
    """Meet the other ranks and stay with them: over gloo, and over NCCL for tensors on a GPU. Alone: `ALONE`."""
    if place.count == 1:
        yield ALONE
        return
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
        init_method=place.address,
        rank=place.rank,
        world_size=place.count,
        timeout=timedelta(seconds=place.seconds),
    )
    try:
        yield JoinedRanks()
    finally:
        dist.destroy_process_group()
