"""An evaluation's numbers: one `Line` per benchmark, metric and kind of task."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from stepwell.errors import InvalidRequest
from stepwell.evaluation.items import Item
from stepwell.evaluation.measures import Difference, Estimate, estimate, paired_difference, pass_at_k

ALL: Final = ""
"""The kind of a line about all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One number with its interval."""

    benchmark: str
    model: str
    kind: str
    """Of task; empty: of all."""
    metric: str
    value: float
    low: float
    """Lower end of the 95 % interval over tasks."""
    high: float
    items: int
    """Tasks that it is a mean over."""


_COSTS: Final[Mapping[str, Callable[[Item], float]]] = {
    "turns": lambda item: item.turns,
    "tool_calls": lambda item: item.tool_calls,
    "response_tokens": lambda item: item.response_tokens,
    "prompt_tokens": lambda item: item.prompt_tokens,
    "failed_rate": lambda item: item.how == "failed",
}


def lines(benchmark: str, model: str, items: Sequence[Item], ks: Sequence[int], solved_at: float) -> Iterator[Line]:
    """What the items come to: every metric over all tasks, and over each kind where there are several.

    A task counts once, with the mean over its samples. `ks` are those of pass@k; a sample succeeds if its reward is at
    least `solved_at`. Raises InvalidRequest if there are no items.
    """
    kinds = sorted({item.kind for item in items} - {ALL})
    for kind in [ALL, *(kinds if len(kinds) > 1 else ())]:
        own = [item for item in items if kind in (ALL, item.kind)]
        for metric, told in _estimates(own, ks, solved_at):
            yield Line(
                benchmark=benchmark,
                model=model,
                kind=kind,
                metric=metric,
                value=told.value,
                low=told.low,
                high=told.high,
                items=told.tasks,
            )


def _estimates(items: Sequence[Item], ks: Sequence[int], solved_at: float) -> Iterator[tuple[str, Estimate]]:
    tasks = _by_task(items)
    measured = sorted({name for item in items for name in item.measured})
    scores = {name: _scored(name) for name in ("reward", *measured)}
    for name, of in {**scores, **_COSTS}.items():
        yield name, estimate([sum(map(of, samples)) / len(samples) for samples in tasks.values()])
    for k in ks:
        enough = [samples for samples in tasks.values() if len(samples) >= k]
        if enough:
            won = [(len(samples), sum(item.reward >= solved_at for item in samples)) for samples in enough]
            yield f"pass@{k}", estimate([pass_at_k(count, successes, k) for count, successes in won])
    calls = sum(item.tool_calls for item in items)
    if calls:
        valid = 1 - sum(item.invalid_calls for item in items) / calls
        yield "valid_call_rate", Estimate(value=valid, low=valid, high=valid, tasks=len(tasks))


def _scored(name: str) -> Callable[[Item], float]:
    return lambda item: item.score(name)


def _by_task(items: Iterable[Item]) -> dict[str, list[Item]]:
    tasks: dict[str, list[Item]] = {}
    for item in items:
        tasks.setdefault(item.task, []).append(item)
    return tasks


def compared(before: Sequence[Item], after: Sequence[Item], metric: str) -> Difference:
    """The paired difference of a metric over the tasks that both were given; a task's samples count as their mean.

    Raises:
        InvalidRequest: they have no task in common.
    """
    old, new = _by_task(before), _by_task(after)
    both = sorted(old.keys() & new.keys())
    if not both:
        raise InvalidRequest("the two evaluations have no task in common, so nothing can be compared")

    def means(tasks: Mapping[str, Sequence[Item]]) -> list[float]:
        return [sum(item.score(metric) for item in tasks[task]) / len(tasks[task]) for task in both]

    return paired_difference(means(old), means(new))


def write_lines(path: Path, told: Sequence[Line]) -> None:
    """As Parquet, one row per line; those of other benchmarks that are there already stay."""
    rows = [asdict(line) for line in told]
    new = {line.benchmark for line in told}
    kept = [row for row in pq.read_table(path).to_pylist() if row["benchmark"] not in new] if path.exists() else []
    partial = path.with_suffix(".partial")
    pq.write_table(pa.Table.from_pylist(kept + rows), partial)
    partial.rename(path)
