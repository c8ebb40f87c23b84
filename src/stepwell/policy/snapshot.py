"""The policy as it was: the tensors that training changes, kept, and put back for as long as somebody asks.

The critic is not among them: whoever asks wants log-probabilities, and the critic has no part in those.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from stepwell.policy.model import Policy


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What training changes, as it was at one version. For adapters (LoRA) that is little."""

    version: int
    state: dict[str, Tensor]

    @classmethod
    def of(cls, policy: Policy) -> "Snapshot":
        """A copy of `policy` as it is."""
        with policy.reading():
            return cls(policy.version, {name: tensor.clone() for name, tensor in policy.model_state().items()})

    @contextmanager
    def in_place(self, policy: Policy) -> Iterator[None]:
        """Make `policy` what it was when this was taken; nobody else samples from it meanwhile."""
        with policy.writing():
            now = {name: tensor.clone() for name, tensor in policy.model_state().items()}
            policy.load_model_state(self.state)
            try:
                yield
            finally:
                policy.load_model_state(now)
