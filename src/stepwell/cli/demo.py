"""`stepwell demo`: the whole line on real input, with every figure measured in this very run."""

import asyncio
import hashlib
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console

from stepwell.cli.config import RecipeConfig
from stepwell.cli.dashboard import serve_dashboard
from stepwell.cli.evaluation import evaluate_once
from stepwell.cli.invented import fill
from stepwell.cli.parts import POOL_FILE, open_pool
from stepwell.cli.plots import plot_curves
from stepwell.cli.progress import Display
from stepwell.cli.recipes import find_recipe
from stepwell.cli.run_folder import fresh_folder, point_latest_at
from stepwell.cli.training import Progress, TrainingRun, training_run
from stepwell.config import load_config
from stepwell.engines.base import Chunk, Engine, Generation
from stepwell.errors import NotFound
from stepwell.evaluation.measures import Difference, paired_difference
from stepwell.rendering.messages import Message, ToolCall
from stepwell.rollout.env import TaskSet
from stepwell.rollout.episode import Episode
from stepwell.trainer.collate import MicroBatch
from stepwell.types import TokenSource, UpdateInfo

_INVENTED: Final = 3_000  # steps
LANGUAGE_MODEL: Final = "searchqa_smollm2"
SMALL: Final = "lookup"
RATIO_TOLERANCE: Final = 1e-3


def demo(
    quick: Annotated[bool, typer.Option("--quick", help="Only the small policy: under three minutes.")] = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with an interrupted demo.")] = None,
    port: Annotated[int, typer.Option(help="Port of gateway and dashboard; 0 takes a free one.")] = 0,
    wait: Annotated[bool, typer.Option(help="At the end, on a terminal, keep the dashboard up until Ctrl-C.")] = True,
    dashboard: Annotated[
        bool, typer.Option("--dashboard", help="Train nothing: the dashboard of a made-up pool, to look at and to try.")
    ] = False,
) -> None:
    """Train on real questions and on a tiny task through gateway, pool and trainer, and say what came of it."""
    console = Console()
    if dashboard:
        _show_invented(port)
        return
    if resume is not None and not resume.is_dir():
        raise NotFound(f"there is no demo in {resume}")
    folder = resume or fresh_folder(Path("runs"), "demo")
    try:
        parts = [_play(name, folder, console, port) for name in ((SMALL,) if quick else (LANGUAGE_MODEL, SMALL))]
    except KeyboardInterrupt:
        console.print(f"stopped; go on with: stepwell demo {'--quick ' if quick else ''}--resume {folder}")
        raise
    plot_curves(folder / "curves.png", [(part.title, part.updates) for part in parts])
    _summarise(console, folder, parts)
    if wait and console.is_terminal:
        serve_dashboard(folder / POOL_FILE, port=port)


def _show_invented(port: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / POOL_FILE
        with open_pool(path, make=True) as pool:
            fill(pool, _INVENTED)
        serve_dashboard(path, port=port, may_write=True)


class _Witness:
    """Compares what the engine sampled with what the trainer trained on, byte for byte.

    Digests are kept in a file, since a resumed run may train on what was sampled before it was interrupted.
    """

    def __init__(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        self._sampled = set(file.read_text(encoding="ascii").split()) if file.exists() else set()
        self._file = file.open("a", encoding="ascii")
        self.trained = 0
        self.strangers = 0
        """Trained rows that the engine never sampled."""

    def watch(self, engine: Engine) -> Engine:
        """The engine, with each finished completion remembered by its digest."""
        return _Watched(engine, self._remember)

    def check(self, batch: MicroBatch) -> None:
        """Look each row of a micro-batch up among the completions."""
        for row in batch.rows():
            self.trained += 1
            self.strangers += _digest(row.numpy()) not in self._sampled

    def _remember(self, ids: np.ndarray) -> None:
        digest = _digest(ids)
        self._sampled.add(digest)
        print(digest, file=self._file, flush=True)


@dataclass(frozen=True, slots=True)
class _Watched:
    """An engine that passes everything on and tells what was sampled."""

    engine: Engine
    tell: Callable[[np.ndarray], None]

    @property
    def model(self) -> str:
        return self.engine.model

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    @property
    def token_source(self) -> TokenSource:
        return self.engine.token_source

    async def healthy(self) -> bool:
        return await self.engine.healthy()

    @property
    def policy_version(self) -> int:
        return self.engine.policy_version

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        response: list[int] = []
        async with aclosing(self.engine.generate(request)) as chunks:
            async for chunk in chunks:
                response += chunk.token_ids
                if chunk.finish_reason is not None:
                    self.tell(np.concatenate([request.prompt_ids, np.array(response, np.int64)]))
                yield chunk


def _digest(ids: np.ndarray) -> str:
    return hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """What one of the two runs came to."""

    recipe: RecipeConfig
    title: str
    updates: list[UpdateInfo]
    sampled: Difference
    """Held-out reward at the training temperature."""
    greedy: Difference
    """Held-out reward without sampling noise."""
    constants: list[tuple[str, float]]
    """Held-out reward of policies that search and then always give the same answer: what no reading at all earns."""
    witness: _Witness
    seconds: float


def _play(name: str, folder: Path, console: Console, port: int) -> _Part:
    recipe = load_config(RecipeConfig, find_recipe(name))
    console.rule(f"{recipe.name}: {recipe.policy.model} learns {recipe.environment['use']}")
    display, witness = Display(console), _Witness(folder / recipe.name / "sampled.sha256")
    progress = Progress(
        on_phase=display.phase,
        on_unit=display.unit,
        on_collected=display.collected,
        on_update=display.update,
        on_micro_batch=witness.check,
    )
    started = time.monotonic()
    with (
        display.live(),
        training_run(
            recipe, folder / recipe.name, progress, pool=folder / POOL_FILE, port=port, watch=witness.watch
        ) as run,
    ):
        point_latest_at(folder)
        console.print(f"gateway {run.served.url}/v1   dashboard {run.served.url}/", highlight=False)
        sampled, greedy = asyncio.run(_train_and_compare(run))
        updates = run.served.pool.updates(recipe.name)
        constants = _constant_answers(run.tasks, _held_out(run))
    return _Part(
        recipe=recipe,
        title=f"{recipe.policy.model} on {recipe.environment['use']}",
        updates=updates,
        sampled=sampled,
        greedy=greedy,
        constants=constants,
        witness=witness,
        seconds=time.monotonic() - started,
    )


async def _train_and_compare(run: TrainingRun) -> tuple[Difference, Difference]:
    tasks = _held_out(run)
    temperatures = {"sampled": run.recipe.evaluation.temperature, "greedy": 0.0}
    before = {k: await evaluate_once(run, f"before-{k}", tasks, t) for k, t in temperatures.items()}
    await run.train()
    after = {k: await evaluate_once(run, f"after-{k}", tasks, t) for k, t in temperatures.items()}
    return (
        paired_difference(before["sampled"], after["sampled"]),
        paired_difference(before["greedy"], after["greedy"]),
    )


def _held_out(run: TrainingRun) -> Sequence[str]:
    return run.tasks.tasks("test")[: run.recipe.evaluation.tasks]


def _constant_answers(tasks: TaskSet, task_ids: Sequence[str]) -> list[tuple[str, float]]:
    """Control: mean reward of searching for the question and then answering `yes`, or `no`, whatever was found."""
    if {tool.name for tool in tasks.make().tools} != {"search", "answer"}:
        return []

    async def mean_reward(answer: str) -> float:
        return float(np.mean([await _constant(tasks, task_id, answer) for task_id in task_ids]))

    return [(answer, asyncio.run(mean_reward(answer))) for answer in ("yes", "no")]


async def _constant(tasks: TaskSet, task_id: str, answer: str) -> float:
    episode = await Episode.begin(tasks, task_id)
    total = 0.0
    for name, arguments in (("search", '{"query": "anything"}'), ("answer", f'{{"text": "{answer}"}}')):
        call = ToolCall(id=name, name=name, arguments=arguments)
        total += (await episode.step(Message(role="assistant", tool_calls=(call,)))).reward
    return total


def _summarise(console: Console, folder: Path, parts: Sequence[_Part]) -> None:
    console.rule("summary")
    for part in parts:
        first, last = dict(part.updates[0].metrics), dict(part.updates[-1].metrics)
        tokens = sum(dict(u.metrics)["trained_tokens"] for u in part.updates)
        steps = sum(dict(u.metrics)["trained_steps"] for u in part.updates)
        lines = [
            f"[bold]{part.title}[/bold] by {part.recipe.algorithm['use']}: {len(part.updates)} updates on {steps:.0f} "
            f"steps ({tokens:.0f} tokens), {part.seconds:.0f} s",
            f"  rollout reward      first update {first['reward_mean']:.3f}, last update {last['reward_mean']:.3f}",
            f"  held out, sampled   {_difference(part.sampled)}",
            f"  held out, greedy    {_difference(part.greedy)}",
            *(f"  control: always {answer!r:6} {reward:.3f}" for answer, reward in part.constants),
            f"  ratio before update {_ratio(part.updates)}",
            f"  trained ids         {_identity(part.witness)}",
        ]
        console.print("\n".join(lines), highlight=False, soft_wrap=True)
    console.print(f"curves     {folder}/curves.png", highlight=False)
    console.print(f"dashboard  stepwell dashboard {folder}   (opens it again at any time)", highlight=False)
    console.print(f"serve      stepwell serve --run {folder}/{parts[0].recipe.name}", highlight=False)


def _difference(d: Difference) -> str:
    verdict = "improved" if d.improved else "no improvement shown: the interval includes 0" if d.high >= 0 else "worse"
    return (
        f"{d.before:.3f} before, {d.after:.3f} after; difference {d.after - d.before:+.3f}, "
        f"95 % interval [{d.low:+.3f}, {d.high:+.3f}] over {d.tasks} tasks: {verdict}"
    )


def _ratio(updates: Sequence[UpdateInfo]) -> str:
    worst = max(dict(u.metrics)["ratio_error"] for u in updates)
    verdict = "ok" if worst < RATIO_TOLERANCE else f"NOT within {RATIO_TOLERANCE}"
    return f"largest |trainer/rollout - 1| of any token in any update: {worst:.1e}: {verdict}"


def _identity(witness: _Witness) -> str:
    if witness.strangers:
        return f"{witness.strangers} of {witness.trained} trained rows were NOT sampled by the engine"
    return f"all {witness.trained} trained rows are byte for byte what the engine sampled"
