"""Our algorithms among veRL's advantage estimators.

veRL hands an estimator the rewards, the mask and the group of each row, nothing else. Ours also need to know which rows
are the steps of one trajectory, and the critic's values. So `register` keeps the batch at hand while veRL's own
`compute_advantage` runs.
"""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import numpy as np
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo import core_algos, ray_trainer

from stepwell.adapters.verl.credit import advantages, is_usable
from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.base import AlgorithmConfig
from stepwell.errors import InvalidRequest

_FORKING: Final = ("rtpo",)
"""Those that compare siblings forked at a step, of which veRL makes none."""
_batch: Final[ContextVar[DataProto | None]] = ContextVar("batch", default=None)
"""The batch whose advantages veRL is computing."""


def register(algorithms: Mapping[str, AlgorithmConfig] | None = None) -> tuple[str, ...]:
    """Make `algorithm.adv_estimator=stepwell_<name>` known to veRL in this process; gives the names.

    veRL computes advantages in the process of its trainer, which Ray starts: set `VERL_USE_EXTERNAL_MODULES` to
    `stepwell.adapters.verl.plugin` there, which calls this. Calling it again changes nothing.

    Args:
        algorithms: Their settings by name; None: every algorithm of `stepwell.algorithms` with its own, but for those
            that read log-probabilities of a teacher or of the current policy, which veRL does not hand over, or
            compare forked siblings, which it does not make.

    Raises:
        ValueError: from veRL, if a name was registered with other settings.
    """
    own = {name: kind() for name, kind in ALGORITHMS.items() if name not in _FORKING and is_usable(kind().build())}
    chosen = own if algorithms is None else algorithms
    for name, config in chosen.items():
        core_algos.register_adv_est(f"stepwell_{name}")(_estimator(config))
    _wrap("compute_advantage", ray_trainer.compute_advantage, _keeping)
    with contextlib.suppress(ImportError):  # its second trainer has requirements of its own
        from verl.trainer.ppo.v1 import utils  # noqa: PLC0415

        name = "compute_advantage_for_multi_trajectories"
        _wrap(name, getattr(utils, name), _naming)
    return tuple(f"stepwell_{name}" for name in chosen)


@functools.cache
def _estimator(config: AlgorithmConfig) -> Callable[..., tuple[Tensor, Tensor]]:
    algorithm = config.build()

    def estimate(**_: Any) -> tuple[Tensor, Tensor]:
        data = _batch.get()
        if data is None:
            raise InvalidRequest(
                f"stepwell_{algorithm.name} was called outside of veRL's compute_advantage; call "
                "stepwell.adapters.verl.advantages(data, algorithm) instead"
            )
        return advantages(data, algorithm)

    return estimate


_WRAPPED: Final = "_stepwell_wrapped"


def _wrap(name: str, function: Callable[..., DataProto], wrapper: Callable[..., Callable[..., DataProto]]) -> None:
    """Put `wrapper(function)` wherever veRL has imported the function to, once."""
    if hasattr(function, _WRAPPED):
        return
    wrapped = functools.wraps(function)(wrapper(function))
    setattr(wrapped, _WRAPPED, True)
    for module in _verl_modules():
        if vars(module).get(name) is function:
            setattr(module, name, wrapped)


def _verl_modules() -> Iterator[Any]:
    return (module for name, module in list(sys.modules.items()) if name.partition(".")[0] == "verl" and module)


def _keeping(compute: Callable[..., DataProto]) -> Callable[..., DataProto]:
    """`compute_advantage`, with the batch at hand for our estimators."""

    def compute_advantage(data: DataProto, *args: Any, **kwargs: Any) -> DataProto:
        token = _batch.set(data)
        try:
            return compute(data, *args, **kwargs)
        finally:
            _batch.reset(token)

    return compute_advantage


def _naming(compute: Callable[..., DataProto]) -> Callable[..., DataProto]:
    """The same of veRL's second trainer, whose keys `uid_session_index` tell what is a trajectory."""

    def compute_advantage_for_multi_trajectories(
        data: DataProto, batch_keys: list[str], *args: Any, **kwargs: Any
    ) -> DataProto:
        places = [key.rpartition("_") for key in batch_keys]
        data.non_tensor_batch["trajectory_uid"] = np.array([session for session, _, _ in places], object)
        data.non_tensor_batch["step_index"] = np.array([int(index) for _, _, index in places], np.int64)
        return compute(data, batch_keys, *args, **kwargs)

    return compute_advantage_for_multi_trajectories
