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


def shown(display: Display, console: Console) -> list[str]:
    with console.capture() as capture:
        console.print(display.panel())
    return [row.strip("│ ") for row in capture.get().splitlines()]


def told(version: int, **metrics: float) -> UpdateInfo:
    return UpdateInfo(run="lookup", policy_version=version, metrics=tuple(metrics.items()))


def test_the_panel_has_the_newest_updates_metrics_the_course_of_the_reward_and_what_is_done_now() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    display = Display(console)
    display.phase("train", 4)
    assert "train" in "".join(shown(display, console))
    seconds = {"seconds_collect": 6.0, "seconds_learn": 3.0, "seconds_publish": 1.0}
    display.update(told(1, reward_mean=0.0))
    display.collected()
    metrics = {"reward_mean": 1.0, "reward/solved": 0.75, "staleness_mean": 1.5, "staleness_max": 2.0, **seconds}
    display.update(told(2, sampled_tokens=12_340.0, trained_tokens=50_000.0, **metrics))
    display.unit()
    display.unit()
    display.collected()
    title, reward, stale, tokens, time, now, bar, _ = shown(display, console)
    assert "lookup, update 2" in title
    assert reward.split() == ["reward", "1.000", "solved", "0.750", "▁█"]
    assert stale.split(maxsplit=1) == ["staleness", "1.5 updates on average, at most 2"]
    assert tokens.split(maxsplit=1) == ["tokens/s", "1,234 sampled, 5,000 trained on"]
    assert " ".join(time.split()) == "time collect 6.0 s (60%) learn 3.0 s (30%) publish 1.0 s (10%)"
    assert now.split(maxsplit=1)[1].startswith("learn for 0 s")
    assert "train" in bar
    assert "2/4" in bar


def test_a_panel_of_an_update_that_measured_nothing_has_only_what_is_known() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    display = Display(console)
    display.update(told(1))
    labels = [row.split()[0] for row in shown(display, console)[1:3]]
    assert labels[0] == "now"


def test_on_a_terminal_lines_stand_above_the_panel_and_the_panel_goes_when_the_run_ends() -> None:
    console = Console(file=StringIO(), width=100, force_terminal=True, color_system=None)
    with Display(console).live() as display:
        display.phase("train", 1)
        display.update(told(1, reward_mean=0.5))
    written = console.file.getvalue()  # type: ignore[attr-defined]
    assert "update    1  reward  0.500" in written
    assert "lookup, update 1" in written
