"""`stepwell pool rescore`: new rewards for what is stored."""

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ConfigDict
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn

from stepwell.cli.parts import LATEST_POOL, PoolLocation, open_pool
from stepwell.cli.selecting import Chosen, Where, selection_of
from stepwell.config import Config, component_config, load_config
from stepwell.curation.selection import Selection
from stepwell.errors import StepwellError
from stepwell.pool.base import Pool
from stepwell.scoring.base import ScorerConfig
from stepwell.scoring.rescore import Rescored, name_of, rescore
from stepwell.scoring.scorers import SCORERS

_PAGE = 10_000
"""Trajectories that are counted at once."""
_SHOWN = 20
"""Failures that are printed."""


class _Section(Config):
    """A file with a scorer: which keys it may have, the scorer knows."""

    model_config = ConfigDict(extra="allow")


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command(
        "rescore",
        epilog="Examples: [bold]stepwell pool rescore f1 references=gold.jsonl part=answer[/bold]   "
        "[bold]stepwell pool rescore judge.yaml model=qwen3 --where agents=\\[quiz] --workers 64[/bold]",
    )(rescore_command)


def rescore_command(
    scorer: Annotated[
        str, typer.Argument(metavar="SCORER|FILE", help=f"{', '.join(SCORERS)}; or a YAML or JSON file with one.")
    ],
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings of the scorer, such as part=answer.")
    ] = None,
    pool: PoolLocation = LATEST_POOL,
    where: Where = None,
    chosen: Chosen = "",
    name: Annotated[
        str, typer.Option(help="Of the rescoring: under a name each is scored once. Else made of the settings.")
    ] = "",
    replaces: Annotated[
        bool, typer.Option("--replace", help="Set all other reward parts to 0, so that these alone are the reward.")
    ] = False,
    workers: Annotated[int, typer.Option(min=1, max=4096, help="Trajectories that are scored at once.")] = 16,
    timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest time for one trajectory; then it counts as failed.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of words.")] = False,
) -> None:
    """Give new rewards to stored trajectories. What held before stays in their history.

    Ctrl-C loses nothing: the same command goes on where it stopped. Ends with 1 if some could not be scored.
    """
    config = scorer_of(scorer, settings or [])
    named = name or name_of(config, replaces=replaces)
    console = Console(stderr=as_json)
    with open_pool(pool, read_only=True):
        pass  # it must be there: opened for writing, one that is mistyped would be made
    with open_pool(pool) as opened:
        selection = selection_of(opened, chosen, where) if where or chosen else None
        run = partial(
            rescore, opened, config, selection, name=named, replaces=replaces, workers=workers, timeout=timeout
        )
        done = _shown(run, _count(opened, selection), console)
    if as_json:
        typer.echo(json.dumps({"name": named, **dataclasses.asdict(done), "failures": dict(done.failures)}, indent=2))
    else:
        console.print(f"{named}: {_in_words(done)}", highlight=False, soft_wrap=True)
    for trajectory_id, why in done.failures[:_SHOWN]:
        console.print(f"{trajectory_id}: {why}", style="red", highlight=False, markup=False, soft_wrap=True)
    if done.failed:
        raise typer.Exit(1)


def scorer_of(scorer: str, settings: list[str]) -> ScorerConfig:
    """The settings of a scorer that is named, or described in a YAML or JSON file.

    Raises:
        ConfigError: the file or a setting is wrong; the message says how.
    """
    if not scorer.endswith((".yaml", ".yml", ".json")):
        return component_config(SCORERS, ScorerConfig, {**_section(None, settings), "use": scorer})
    return component_config(SCORERS, ScorerConfig, _section(scorer, settings))


def _section(file: str | None, settings: list[str]) -> dict[str, Any]:
    return load_config(_Section, Path(file) if file else None, settings).model_extra or {}


def _shown(run: Callable[..., Rescored], total: int, console: Console) -> Rescored:
    """Rescore with a bar, or without one in a log file. If it breaks off, it says how to go on."""
    so_far = Rescored()
    with Progress(
        *Progress.get_default_columns(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]}", style="red"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task("trajectories", total=total, failed="")

        def show(done: Rescored) -> None:
            nonlocal so_far
            so_far = done
            progress.update(task, completed=done.seen, failed=f"{done.failed:,} failed" if done.failed else "")

        try:
            return run(progress=show)
        except (KeyboardInterrupt, StepwellError) as error:
            if so_far.seen or isinstance(error, KeyboardInterrupt):
                how = "interrupted" if isinstance(error, KeyboardInterrupt) else "broken off"
                console.print(f"{how}: {_in_words(so_far)}", highlight=False, soft_wrap=True)
                console.print("The same command goes on where this one stopped.", highlight=False)
            raise


def _count(pool: Pool, selection: Selection | None) -> int:
    """How many there are, about: rules leave some out, and others may be opened meanwhile."""
    if selection is None:
        return pool.stats().trajectories
    count, before = 0, None
    while page := pool.trajectories(selection, before=before, limit=_PAGE):
        count, before = count + len(page), page[-1][0]
    return count


def _in_words(done: Rescored) -> str:
    return (
        f"{done.scored:,} scored, {done.unchanged:,} were scored before, {done.skipped:,} with nothing to score, "
        f"{done.failed:,} failed"
    )
