"""The other ranks of a learner as actors of a Ray cluster, spread over its nodes; they end with the one that has them
placed. The optional package is imported here, so whoever imports this may lack it."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from stepwell.cli.fleet.cluster import joined
from stepwell.cli.serving import free_port
from stepwell.errors import ConfigError, RankDied, StepwellError
from stepwell.policy.ranks import Place

_GRACE: Final = 60.0
"""Seconds within which the cluster has to have a place for each."""
_FAREWELL: Final = 30.0
"""Seconds that they have to go once they are let go."""
_NOTICE: Final = 5.0
"""Seconds after an error within which a death is taken for its cause."""


class RankActor:
    """One of the others."""

    def refuse_other_disk(self, folder: Path) -> None:
        """Raise ConfigError unless this node sees the run's folder, into which all ranks write."""
        if not folder.is_dir():
            raise ConfigError(
                f"the ranks of a learner write its checkpoints together, and {socket.gethostname()} does not see "
                f"{folder}: give --folder a disk that all nodes have under one path"
            )

    def follow(self, follow: Callable[[Place], None], place: Place) -> None:
        """Do what the first rank says, to its end."""
        follow(place)


@contextmanager
def followed_in_cluster(count: int, players: int, folder: Path, follow: Callable[[Place], None]) -> Iterator[Place]:
    """As `stepwell.cli.fleet.followers.followed`, with the others on whatever nodes have a CPU for each. All meet at
    the first, on this machine.

    Raises:
        ConfigError: the cluster has too little room beside its `players`, or a node does not see `folder`.
        RankDied: one of them did.
        Unavailable: RAY_ADDRESS names a cluster that cannot be reached.
    """
    with joined(players, count - 1) as there, _room(count - 1) as room:
        address = f"tcp://{there.host}:{free_port(there.host)}"
        places = [Place(rank=rank, count=count, address=address) for rank in range(count)]
        actors = [_actor(room, rank) for rank in range(count - 1)]
        following: list[Any] = []
        try:
            _answered([actor.refuse_other_disk.remote(folder) for actor in actors])
            following = [actor.follow.remote(follow, place) for actor, place in zip(actors, places[1:], strict=True)]
            yield places[0]
            ray.wait(following, num_returns=len(following), timeout=_FAREWELL)
        except Exception as error:
            dead = [] if isinstance(error, StepwellError) else _dead(following)
            if dead:
                raise RankDied(f"{' and '.join(dead)}; go on with `stepwell train --resume`") from error
            raise
        finally:  # they may wait for something that will not be said any more
            for actor in actors:
                with suppress(RayError):
                    ray.kill(actor)


@contextmanager
def _room(count: int) -> Iterator[PlacementGroup]:
    group = placement_group([{"CPU": 1.0}] * count, strategy="SPREAD")
    try:
        if not group.wait(_GRACE):
            total = int(ray.cluster_resources().get("CPU", 0))
            raise ConfigError(
                f"{count} more ranks of the learner are to have one CPU each, and the cluster has {total}, or others "
                "use them: add nodes (`ray start --address=…`), or set learner.ranks lower"
            )
        yield group
    finally:
        remove_placement_group(group)


def _actor(room: PlacementGroup, bundle: int) -> Any:
    strategy = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=bundle)
    return ray.remote(num_cpus=1, max_restarts=0, scheduling_strategy=strategy)(RankActor).remote()


def _answered(asked: Sequence[Any]) -> None:
    try:
        ray.get(list(asked))
    except RayError as error:
        if isinstance(cause := getattr(error, "cause", None), StepwellError):
            raise cause from error
        raise RankDied(f"a rank of the learner could not begin: {_last_line(error)}") from error


def _dead(following: Sequence[Any]) -> list[str]:
    ended, _ = ray.wait(list(following), num_returns=1, timeout=_NOTICE) if following else ([], [])
    causes = []
    for one in ended:
        try:
            ray.get(one)
        except RayError as error:
            causes.append(f"rank {following.index(one) + 1} of the learner died ({_last_line(error)})")
    return causes


def _last_line(error: RayError) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()
