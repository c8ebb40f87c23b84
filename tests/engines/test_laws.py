"""Every engine over a model that is here obeys the laws."""

from collections.abc import Iterator

import pytest

from tests.engines.benches import LocalBench
from tests.engines.laws import EngineLaws, ask_all, check_greedy, prompt
from tests.policy.tiny import CONFIGS


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
