"""What merging shared prefixes saves: forward and backward over prefix trees, and over the same rows apart.

Both are Stepwell's own training passes, padding-free, with the same budget of tokens; they take turns in one process,
so that whatever else the machine does slows both down. "siblings 1/4" are those of a quarter of the lengths: no pass is
to take ten minutes. Of a long trajectory merging saves more tokens than operations, as the first steps, which it saves,
attend to little: so the ratio of operations stands beside that of tokens. A speed-up may exceed it where larger
products are computed faster than many small ones. `--device cuda` measures all at full length on a GPU, with
FlexAttention for both.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.prefix_tree
import prefix_tree_load as load
from report import Row, main

from stepwell.policy.model import Policy
from stepwell.prefix_tree.pack import Merging, pack
from stepwell.prefix_tree.tree import merged
from stepwell.types import Ids, Sample

SHARE_GOAL = {"siblings": 0.9, "linear": 0.9}
"""Of the token ratio, the speed-up that is to be reached."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model on a workload, lengths divided, measured some rounds."""

    model: str
    workload: str
    divisor: int
    rounds: int

    @property
    def name(self) -> str:
        return f"{self.model}, {self.workload}" + (f" 1/{self.divisor}" if self.divisor > 1 else "")


_SMALL, _LARGE = load.MODELS
QUICK = (
    Case(_SMALL, "siblings", 32, 2),
    Case(_SMALL, "linear", 8, 2),
    Case(_SMALL, "GRPO", 16, 2),
    Case(_SMALL, "nothing shared", 32, 3),
)
FULL = (  # about half an hour on two cores, of which SmolLM2's siblings take a third
    Case(_LARGE, "siblings", 8, 2),
    Case(_LARGE, "siblings", 4, 1),
    Case(_LARGE, "linear", 4, 2),
    Case(_LARGE, "linear", 2, 1),
    Case(_LARGE, "GRPO", 2, 1),
    Case(_LARGE, "5 % shared", 16, 2),
    Case(_LARGE, "nothing shared", 8, 2),
    Case(_SMALL, "siblings", 8, 2),
    Case(_SMALL, "siblings", 2, 2),
    Case(_SMALL, "linear", 4, 3),
    Case(_SMALL, "linear", 1, 2),
    Case(_SMALL, "GRPO", 1, 2),
    Case(_SMALL, "5 % shared", 2, 3),
    Case(_SMALL, "nothing shared", 2, 3),
)
GPU = tuple(
    Case(model, workload, 1, 3) for model, workload in dict.fromkeys((case.model, case.workload) for case in FULL)
)


def measure(quick: bool, device: str = "cpu") -> Sequence[Row]:
    if quick:
        torch.set_num_threads(1)  # more gain nothing on lengths this small, and lose much where a core is busy
    cases = QUICK if quick else GPU if device == "cuda" else FULL
    jobs: list[Callable[[], Iterator[Row]]] = [_building, *(partial(_compared, case, device) for case in cases)]
    if device == "cpu":
        jobs.append(partial(_back_ends, Case(_SMALL, "siblings", 32 if quick else 2, 2)))
        jobs.append(partial(_back_ends, Case(_SMALL, "crumbs", 2 if quick else 1, 2)))
    if not quick:  # starting its processes takes longest
        jobs += [partial(_memory, Case(model, "linear", 4, 1), device) for model in load.MODELS]
    threads = Row(name="torch threads on the CPU", value=torch.get_num_threads(), unit="")
    return [threads, *(row for job in track(jobs, "Measuring", console=Console(stderr=True)) for row in job())]


def _building() -> Iterator[Row]:
    rows = [sample.token_ids for sample in load.siblings(49_152, 1)]
    yield _speed("building the tree of siblings", rows, goal=10)
    yield _speed("building a tree that parts in four every 64 tokens", load.bushy(4, 5, 64), goal=10)
    yield _speed("building a tree that parts in two at every token", load.bushy(2, 12, 1), goal=None)
    packing = _cpu_seconds(lambda: pack(rows, load.BUDGET))
    yield Row(name=f"building and packing siblings, {_tokens(rows):,} tokens", value=packing, unit="CPU s", goal=0.3)


def _speed(name: str, rows: Sequence[Ids], goal: float | None) -> Row:
    speed = _tokens(rows) / _cpu_seconds(lambda: merged(rows))
    return Row(name=name, value=speed / 1e6, unit="M tokens/CPU s", goal=goal, better="higher")


def _tokens(rows: Sequence[Ids]) -> int:
    return sum(map(len, rows))


def _cpu_seconds(work: Callable[[], object]) -> float:
    """The best of five."""
    seconds = []
    for _ in range(5):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return min(seconds)


def _compared(case: Case, device: str) -> Iterator[Row]:
    policy = load.model_on(case.model, device)
    samples = load.WORKLOADS[case.workload](policy.vocabulary_size, case.divisor)
    rows = [sample.token_ids for sample in samples]
    flat = _tokens(rows)
    if case.workload == "nothing shared":
        off, auto = _alternating(policy, samples, ("off", "auto"), case.rounds)
        yield Row(name=f"{case.name}: auto / apart", value=auto.seconds / off.seconds, unit="x", goal=1.05)
        return
    off, on = _alternating(policy, samples, ("off", "on"), case.rounds)
    speedup, ratio = off.seconds / on.seconds, flat / on.tokens
    yield Row(name=f"{case.name}: {flat:,} tokens apart", value=off.seconds, unit="s")
    yield Row(name=f"{case.name}: {on.tokens:,} merged", value=on.seconds, unit="s")
    yield Row(name=f"{case.name}: speed-up", value=speedup, unit="x", better="higher")
    yield Row(name=f"{case.name}: token ratio", value=ratio, unit="x", better="higher")
    whole = flat / len(merged(rows).ids)
    yield Row(name=f"{case.name}: token ratio, were there no budget", value=whole, unit="x", better="higher")
    goal = SHARE_GOAL.get(case.workload)
    yield Row(name=f"{case.name}: speed-up / token ratio", value=speedup / ratio, unit="", goal=goal, better="higher")
    ideal = off.operations / on.operations
    yield Row(name=f"{case.name}: ratio of operations", value=ideal, unit="x", better="higher")
    yield Row(name=f"{case.name}: speed-up / ratio of operations", value=speedup / ideal, unit="", better="higher")
    difference = float((on.gradient - off.gradient).norm() / off.gradient.norm())
    yield Row(name=f"{case.name}: relative gradient difference", value=difference, unit="", goal=1e-5)


def _alternating(
    policy: Policy, samples: Sequence[Sample], ways: tuple[Merging, Merging], rounds: int
) -> Sequence[load.Pass]:
    """The fastest pass of each way, which take turns."""
    load.evaluate(policy, samples[:1], "off")
    if load.device_of(policy).type == "cuda":  # kernels are compiled for the shapes that come
        for way in ways:
            load.evaluate(policy, samples, way)
    best: dict[Merging, load.Pass] = {}
    for _ in range(rounds):
        for way in ways:
            taken = load.evaluate(policy, samples, way)
            best[way] = min(best.get(way, taken), taken, key=lambda one: one.seconds)
    return [best[way] for way in ways]


def _back_ends(case: Case) -> Iterator[Row]:
    """The reference, with a mask over the whole tree, beside block by block, and how good Stepwell's choice is."""
    policy = load.model_on(case.model, "cpu")
    samples = load.WORKLOADS[case.workload](policy.vocabulary_size, case.divisor)
    seconds: dict[str | None, list[float]] = {"dense": [], "blocks": [], None: []}
    for _ in range(case.rounds):
        for backend, taken in seconds.items():
            taken.append(load.evaluate(policy, samples, "on", backend).seconds)
    dense, blocks, chosen = (min(taken) for taken in seconds.values())
    yield Row(name=f"{case.name}: merged, dense mask / blocks", value=dense / blocks, unit="x", better="higher")
    yield Row(name=f"{case.name}: chosen / better of the two", value=chosen / min(dense, blocks), unit="x")


def _memory(case: Case, device: str) -> Iterator[Row]:
    ways: dict[Merging, str] = {"off": "apart", "on": "merged"}
    for merging, name in ways.items():
        with ProcessPoolExecutor(
            1, get_context("spawn"), initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        ) as process:
            job = process.submit(load.peak_memory, case.model, case.workload, case.divisor, merging, device)
            yield Row(name=f"{case.name}: peak memory, {name}", value=job.result() / 1e6, unit="MB")


def _options(arguments: Sequence[str]) -> tuple[str, list[str]]:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the passes run")
    options, rest = parser.parse_known_args(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no GPU here, so nothing was measured")
    return options.device, rest


if __name__ == "__main__":
    device, rest = _options(sys.argv[1:])
    where = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    main(f"Prefix trees, {where}", lambda quick: measure(quick, device), rest)
