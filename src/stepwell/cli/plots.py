"""Plots of a run, as PNG files."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from stepwell.types import UpdateInfo

matplotlib.use("Agg")
from matplotlib import pyplot


def plot_curves(path: Path, curves: Sequence[tuple[str, Sequence[UpdateInfo]]]) -> None:
    """Mean reward of the rollouts of each update, one panel per run, as a PNG."""
    figure, axes = pyplot.subplots(1, len(curves), figsize=(6 * len(curves), 4), squeeze=False, layout="constrained")
    for axis, (title, updates) in zip(axes[0], curves, strict=True):
        rewards = [(u.policy_version, dict(u.metrics).get("reward_mean")) for u in updates]
        points = [(version, mean) for version, mean in rewards if mean is not None]
        means = [mean for _, mean in points]
        marker = "o" if len(points) < 30 else ""
        axis.plot([version for version, _ in points], means, color="#1f6feb", marker=marker, markersize=4)
        axis.set(title=title, xlabel="update (policy version)", ylabel="mean reward of the rollouts")
        axis.set_ylim(min([0.0, *means]) - 0.02, max([1.0, *means]) + 0.02)
        axis.grid(alpha=0.3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
