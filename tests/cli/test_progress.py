"""What a person sees of an update."""

from io import StringIO

from rich.console import Console

from stepwell.cli.progress import Display
from stepwell.types import UpdateInfo


def line(**metrics: float) -> str:
    console = Console(file=StringIO(), width=60)
    Display(console).update(UpdateInfo(run="run", policy_version=3, metrics=tuple(metrics.items())))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_an_update_is_one_line_of_its_metrics() -> None:
    everything = {"entropy": 1.25, "approx_kl": 0.002, "ratio_error": 1e-7, "seconds_collect": 2.0, "lr": 1.0}
    everything |= {"prefix_cache_hit_rate": 0.834, "tree_ratio": 0.17, "tree_tokens": 700.0, "seconds_learn": 3.04}
    assert line(reward_mean=0.5, **everything) == (
        "update    3  reward  0.500  entropy  1.250  kl 2.0e-03  |ratio-1| 1.0e-07  "
        "cache  83%  tree  17%  collect   2.0s  learn   3.0s\n"
    )


def test_metrics_that_an_update_does_not_have_are_left_out_of_its_line() -> None:
    assert line(seconds_collect=2.0, reward_mean=0.5, trained_steps=0.0) == (
        "update    3  reward  0.500  collect   2.0s\n"
    )
