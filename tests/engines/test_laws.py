"""Every engine over a model that is here obeys the laws."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from stepwell.engines.local import LocalEngine
from stepwell.policy.model import Policy
from tests.engines.laws import EOS, Bench, EngineLaws, ask_all, check_greedy, prompt
from tests.policy.tiny import CONFIGS, plain_logprobs, tiny_policy


class LocalBench:
    """The local engine; what happens before a pass happens where the engine takes hold of the weights."""

    def __init__(self, kind: str) -> None:
        self.policy = tiny_policy(kind, max_position_embeddings=Bench.CONTEXT)
        self.passes = 0
        self._actions: dict[int, Callable[[], object]] = {}
        self._failing: set[int] = set()
        self._watch(self.policy)
        self.engine = LocalEngine(self.policy, eos_ids=[EOS], max_batch=Bench.SLOTS, seed=1)

    def _watch(self, policy: Policy) -> None:
        hidden, reading = policy.hidden, policy.reading

        @contextmanager
        def watched_reading() -> Iterator[int]:
            self._actions.pop(self.passes, lambda: None)()
            with reading() as version:
                yield version

        def watched_hidden(*arguments) -> Tensor:
            number = self.passes
            self.passes += 1
            if number in self._failing:
                raise RuntimeError("out of memory")
            return hidden(*arguments)

        policy.reading, policy.hidden = watched_reading, watched_hidden

    def logprobs(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        return plain_logprobs(self.policy, ids, scale)

    def publish(self) -> None:
        self._publish(1.3)

    def publish_nan(self) -> None:
        self._publish(torch.nan)

    @torch.no_grad()
    def _publish(self, factor: float) -> None:
        with self.policy.writing():
            for parameter in self.policy.trainable_parameters():
                parameter.mul_(factor)
            self.policy.version += 1

    def before_pass(self, number: int, action: Callable[[], object]) -> None:
        self._actions[self.passes + number] = action

    def fail_in_pass(self, number: int) -> None:
        self._failing.add(self.passes + number)


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[LocalBench]:
    made = LocalBench(getattr(request, "param", "qwen3"))
    yield made
    made.engine.close()


class TestLocalEngine(EngineLaws):
    @pytest.mark.parametrize("bench", sorted(CONFIGS), indirect=True)
    async def test_every_architecture_is_sampled_from_exactly(self, bench: LocalBench) -> None:
        for _ in range(2):
            for answer in await ask_all(bench, [prompt(length, length) for length in (1, 5, 20, 45, 45)]):
                check_greedy(bench, answer)
