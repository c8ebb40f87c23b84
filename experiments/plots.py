"""Two pictures of a study: how its arms learn, and how far each is from the control."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib

from experiments.compare import Compared
from experiments.design import Measure, Study

matplotlib.use("Agg")
from matplotlib import pyplot

_COLUMNS: Final = 3


def plot_curves(study: Study, compared: Mapping[str, Compared], path: Path) -> None:
    """Mean held-out score over the study's first measure, and its standard error over seeds."""
    rows = -(-len(compared) // _COLUMNS)
    columns = min(len(compared), _COLUMNS)
    size = (max(3.6 * columns, 6.0), 3.0 * rows + 0.4)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(compared) :]:
        axis.set_visible(False)
    for axis, (case, own) in zip(axes.flat, compared.items(), strict=False):
        for number, arm in enumerate(study.curves or [arm.name for arm in study.arms]):
            if arm in own.arms:
                _curve(axis, own, arm, study.measures[0], f"C{number}")
        axis.set_title(f"{case} ({len(own.seeds)} seeds)", fontsize=9)
        axis.set_xlabel(study.measures[0], fontsize=8)
        axis.set_ylim(0, 1)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("held-out score", fontsize=8)
    handles = {line.get_label(): line for axis in axes.flat for line in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=7)
    _save(figure, path)


def _curve(axis: Any, compared: Compared, arm: str, measure: Measure, colour: str) -> None:
    scores, at = compared.curves(arm, measure)
    mean = scores.mean(0)
    axis.plot(at, mean, label=arm, color=colour, linewidth=1.3)
    if len(scores) > 1:
        error = scores.std(0, ddof=1) / len(scores) ** 0.5
        axis.fill_between(at, mean - error, mean + error, alpha=0.15, color=colour, linewidth=0)


def plot_differences(study: Study, compared: Mapping[str, Compared], path: Path) -> None:
    """Paired differences to the control with their 95 % intervals, case by case."""
    arms = [arm.name for arm in study.arms if arm.name != study.control]
    figure, axes = pyplot.subplots(
        1,
        len(compared),
        figsize=(1.8 + 2.2 * len(compared), 0.8 + 0.24 * len(arms)),
        layout="constrained",
        squeeze=False,
    )
    for axis, (case, own) in zip(axes.flat, compared.items(), strict=True):
        _differences(axis, study, own, arms)
        axis.set_title(case, fontsize=9)
        axis.set_yticks(range(len(arms)), arms if axis is axes[0, 0] else [""] * len(arms), fontsize=7)
        axis.invert_yaxis()
        axis.axvline(0, color="black", linewidth=0.8)
        axis.tick_params(axis="x", labelsize=7)
        axis.grid(alpha=0.3)
    figure.supxlabel(f"mean score over {study.measures[0]}: difference to {study.control}", fontsize=8)
    _save(figure, path)


def _differences(axis: Any, study: Study, compared: Compared, arms: Sequence[str]) -> None:
    for row, arm in enumerate(arms):
        if arm in compared.arms and study.control in compared.arms and len(compared.seeds) > 1:
            told = compared.difference(arm, study.control, study.measures[0])
            axis.plot([told.low, told.high], [row, row], color="C0", linewidth=1.5)
            axis.plot([told.mean], [row], "o", color="C0", markersize=3)


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80, metadata={"Software": None})
    pyplot.close(figure)
