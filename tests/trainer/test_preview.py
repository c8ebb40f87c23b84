"""What the dashboard says of an update's tree is what training computed."""

from pathlib import Path

import pytest

from stepwell.dashboard.reading.optimisation import Choice, Plan, read_forest
from stepwell.prefix_tree.pack import Merging
from tests.policy.tiny import tiny_policy
from tests.trainer.builders import make_learner
from tests.trainer.test_loop import RUN, Bench, group_records


@pytest.mark.parametrize("merging", ["auto", "on", "off"])
@pytest.mark.parametrize("budget", [12, 40, 4096])
async def test_an_updates_tree_has_the_rows_and_the_tokens_that_its_training_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: int, merging: Merging
) -> None:
    bench = Bench(tmp_path)
    bench.pool.put(*group_records("a"), *group_records("b"))
    trainer = bench.trainer(updates=1)
    learner = make_learner(tiny_policy(), micro_batch_tokens=budget, tree=merging)
    monkeypatch.setattr(bench.learner, "config", learner.config)
    (update,) = await bench.train(trainer)
    forest = read_forest(bench.pool, Choice(run=RUN, version=1), Plan(budget, merging))
    metrics = dict(update.metrics)
    assert forest.saved.rows == metrics["trained_steps"]
    assert forest.saved.flat_tokens == metrics["trained_tokens"]
    assert forest.saved.tokens == metrics["tree_tokens"]
    assert forest.saved.ratio == metrics["tree_ratio"]
    bench.pool.close()
