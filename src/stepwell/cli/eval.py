"""`stepwell eval`: how good a model is on the papers' benchmarks, alone or beside another one."""

import asyncio
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from stepwell.cli.evaluating import Target, Wanted, local_target, needs_all_played, play, served_target, wanted_tasks
from stepwell.cli.parts import build_tasks
from stepwell.cli.playing import PlayConfig, read_play
from stepwell.cli.progress import Display
from stepwell.config import load_config
from stepwell.errors import InvalidRequest, NotFound
from stepwell.evaluation.benchmarks import BENCHMARKS, Benchmark, benchmark
from stepwell.evaluation.items import Item, ItemFile, read_items, write_parquet
from stepwell.evaluation.report import ALL, Line, compared, lines, write_lines

OWN: Final = "own"
"""The held-out tasks of a run's own environment."""
SUMMARY: Final = "summary.parquet"
_MAX_TOKENS: Final = 512
_PLAYED: Final = ("environment.", "agent.", "rollout.")
"""How the settings begin that are about playing, whoever answers."""


def eval(
    benchmarks: Annotated[
        list[str] | None, typer.Argument(metavar="BENCHMARK|KEY=VALUE", help="Names of --list; or settings.")
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="FOLDER", help="A training run: its newest checkpoint.")] = None,
    model: Annotated[str | None, typer.Option(help="A built-in model or a folder; or, with --url, its name.")] = None,
    url: Annotated[str | None, typer.Option(help="A server that speaks OpenAI's chat completions.")] = None,
    split: Annotated[str | None, typer.Option(help="Instead of the benchmark's own.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="At most so many tasks of each benchmark.")] = None,
    samples: Annotated[int, typer.Option(min=1, help="Trajectories of each task, for pass@k.")] = 1,
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="Of pass@k; again for more.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, max=2, help="Of sampling; 0 with one sample, else 1, if not given.")
    ] = None,
    solved_at: Annotated[float, typer.Option(help="Reward from which a sample counts as solved.")] = 1.0,
    against: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Another evaluation: compare on the same tasks.")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where items and tables go.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Print the benchmarks, and end.")] = False,
) -> None:
    """Evaluate a model: scores with 95 % intervals over tasks, pass@k, turns, tool calls, tokens.

    Items are kept as they are played, so the same command goes on where it was stopped. Without a benchmark, a run is
    evaluated on the held-out tasks of its own environment.

    Example: stepwell eval gsm8k math500 --model ./my-model --samples 8 --k 1 --k 8 agent.max_tokens=2048
    """
    console = Console()
    if list_:
        console.print(_catalogue())
        return
    if sum(given is not None for given in (run, url)) > 1 or (run is None and url is None and model is None):
        raise InvalidRequest("say whom to evaluate: --run FOLDER, --model NAME, or --url URL")
    words = benchmarks or []
    settings = [word for word in words if "=" in word]
    names = [word for word in words if "=" not in word] or ([OWN] if run else [])
    if not names:
        raise InvalidRequest("name a benchmark: `stepwell eval --list` has them")
    if not math.isfinite(solved_at):
        raise InvalidRequest(f"--solved-at must be a number, got {solved_at}")
    ks = sorted(set(k or [1]))
    if ks[-1] > samples:
        raise InvalidRequest(f"pass@{ks[-1]} needs as many samples of each task: --samples {ks[-1]}")
    asked = temperature if temperature is not None else float(samples > 1)
    wanted = {name: _wanted(name, run, settings, split, limit, samples, asked) for name in dict.fromkeys(names)}
    folder = out or Path("evals") / _file_name(str(run.resolve().name if run else model or url))
    told: list[Line] = []
    with _target(run, model, url, settings, folder) as target:
        for name, own in wanted.items():
            items = _played(name, target, own, folder, console)
            told += lines(name, target.label, items, ks, solved_at)
            if against is not None:
                _compare(console, name, items, against)
    write_lines(folder / SUMMARY, told)
    console.print(_table(told))
    console.print(f"items and tables  {folder}", highlight=False)


@contextmanager
def _target(
    run: Path | None, model: str | None, url: str | None, settings: Sequence[str], folder: Path
) -> Iterator[Target]:
    of_model = [word for word in settings if not word.startswith(_PLAYED)]
    if url and of_model:
        raise InvalidRequest(f"{of_model[0]!r}: settings of a server are {', '.join(f'{name}*' for name in _PLAYED)}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidRequest(f"cannot write to {folder}: {error.strerror}; choose another --out") from error
    opening = served_target(url, model, folder) if url else local_target(model, run, of_model, folder)
    with opening as target:
        yield target


def _wanted(
    name: str,
    run: Path | None,
    settings: Sequence[str],
    split: str | None,
    limit: int | None,
    samples: int,
    temperature: float,
) -> Wanted:
    own = read_play(run) if run is not None else None
    of: Benchmark | None = None if name == OWN else benchmark(name)
    if of is None and own is None:
        raise NotFound(f"{OWN!r} is a run's own environment: give --run")
    environment = own.environment if of is None and own is not None else of.environment if of is not None else {}
    base: dict[str, Any] = {
        "environment": dict(environment),
        "agent": own.agent.model_dump() if own is not None else {"max_tokens": _MAX_TOKENS},
        "rollout": (own.rollout.model_dump(mode="json") if own is not None else {}) | {"final_state": False},
    }
    base["agent"]["temperature"] = temperature
    played = [word for word in settings if word.startswith(_PLAYED)]
    return Wanted(
        play=load_config(PlayConfig, base, played),
        split=split or (of.split if of else "test"),
        limit=limit,
        samples=samples,
    )


def _played(name: str, target: Target, wanted: Wanted, folder: Path, console: Console) -> Sequence[Item]:
    tasks = wanted_tasks(wanted, build_tasks(wanted.play.environment))
    display = Display(console)
    with ItemFile(folder / f"{_file_name(name)}.jsonl", wanted.settings(target)) as file, display.live():
        display.phase(f"{name}, {target.label}", len(tasks) * wanted.samples)
        for _ in file.items:
            display.unit()
        failed = asyncio.run(play(target, wanted, file, display.unit))
    needs_all_played(failed)
    chosen = [item for item in file.items if item.task in set(tasks) and item.sample < wanted.samples]
    write_parquet(folder / f"{_file_name(name)}.parquet", chosen)
    return chosen


def _compare(console: Console, name: str, items: Sequence[Item], against: Path) -> None:
    file = against / f"{_file_name(name)}.jsonl"
    if not file.exists():
        raise NotFound(f"{against} holds no evaluation on {name}")
    settings, others = read_items(file)
    metric = BENCHMARKS[name].score if name in BENCHMARKS else "reward"
    told = compared(others, items, metric)
    verdict = (
        "better" if told.improved else "worse" if told.high < 0 else "no difference shown: the interval has 0 in it"
    )
    console.print(
        f"{name}, {metric}, {told.tasks} tasks of both: {settings['model']} {told.before:.3f} -> {told.after:.3f}, "
        f"difference {told.after - told.before:+.3f} [{told.low:+.3f}, {told.high:+.3f}]: {verdict}",
        highlight=False,
    )


def _table(told: Sequence[Line]) -> Table:
    """One row per number."""
    table = Table("benchmark", "metric", "mean", "95 % interval", "tasks", box=None, pad_edge=False)
    before = ("", "")
    for line in told:
        of = (line.benchmark, line.kind)
        title = line.benchmark if line.kind == ALL else f"  {line.kind}"
        interval = f"[{line.low:.4g}, {line.high:.4g}]"
        table.add_row("" if of == before else title, line.metric, f"{line.value:.4g}", interval, str(line.items))
        before = of
    return table


def _catalogue() -> Table:
    table = Table("benchmark", "environment", "score", "offline", "to know", box=None, pad_edge=False)
    for name, one in BENCHMARKS.items():
        settings = " ".join(f"{key}={value}" for key, value in one.environment.items() if key != "use")
        offline = "yes" if one.offline else ""
        table.add_row(name, f"{one.environment['use']} {settings}", one.score, offline, one.note)
    return table


def _file_name(text: str) -> str:
    """As a file may be called."""
    return re.sub(r"[^\w.-]+", "-", text.removeprefix("http://").removeprefix("https://")).strip("-")
