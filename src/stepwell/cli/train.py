"""`stepwell train`: run a recipe, or go on with a run that was interrupted."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from stepwell.algorithms import ALGORITHMS
from stepwell.algorithms.presets import load_preset, preset_names
from stepwell.cli.config import RecipeConfig
from stepwell.cli.dry_run import outlook, show_outlook
from stepwell.cli.parts import RECIPE_FILE
from stepwell.cli.plots import plot_curves
from stepwell.cli.profiling import TRACE_FILE, UpdateProfile
from stepwell.cli.progress import Display
from stepwell.cli.recipes import find_recipe
from stepwell.cli.run_folder import fresh_folder, point_latest_at, read_recipe
from stepwell.cli.training import Progress, training_run
from stepwell.config import load_config
from stepwell.errors import InvalidRequest
from stepwell.policy.builtin import resolve_model
from stepwell.policy.weights import export_model
from stepwell.types import UpdateInfo


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="RECIPE KEY=VALUE", help="A recipe (file, or shipped name) and settings."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the run; default runs/NAME-TIME.")
    ] = None,
    algorithm: Annotated[
        str | None, typer.Option(help="Shorthand for algorithm.use=…; `list` prints them, and the presets.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(help="Set algorithm and learner as a paper published them; settings given here come on top."),
    ] = None,
    port: Annotated[
        int, typer.Option(help="Port of the gateway and dashboard while training; 0 takes a free one.")
    ] = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all settings, print the plan with its memory, and end.")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Record where the time of the second update goes, as table and trace.")
    ] = False,
) -> None:
    """Collect, give credit, update, serve the better weights, over and over. Ctrl-C is safe: go on with --resume."""
    console = Console()
    if algorithm == "list":
        _list_algorithms(console)
        return
    if preset and algorithm:
        raise InvalidRequest("a preset names its algorithm: give --preset or --algorithm, not both")
    chosen = load_preset(preset).overrides if preset else []
    recipe, folder = what_to_run(arguments or [], resume, folder, [*chosen, *_used(algorithm)])
    if dry_run:
        show_outlook(console, outlook(recipe, folder))
        return
    profiled = UpdateProfile(folder / TRACE_FILE) if profile else None
    train_in_view(console, recipe, folder, port, f"stepwell train --resume {folder}", profiled)


def train_in_view(
    console: Console, recipe: RecipeConfig, folder: Path, port: int, again: str, profile: UpdateProfile | None = None
) -> None:
    """Train, show how far it is, and say where the results are, or, where it was interrupted, that `again` goes on."""
    display = Display(console)
    told = (display,) if profile is None else (profile, display)

    def collected() -> None:
        for one in told:
            one.collected()

    def updated(update: UpdateInfo) -> None:
        for one in told:
            one.update(update)

    progress = Progress(on_phase=display.phase, on_unit=display.unit, on_collected=collected, on_update=updated)
    try:
        with display.live(), training_run(recipe, folder, progress, port=port) as run:
            point_latest_at(folder)
            console.print(f"run {folder}   dashboard {run.served.url}/", highlight=False)
            asyncio.run(run.train())
            display.phase("export", 1)
            export_model(run.whole_policy(), resolve_model(recipe.policy.model, recipe.seed), folder / "model")
            plot_curves(folder / "curve.png", [(recipe.name, run.served.pool.updates(recipe.name))])
    except KeyboardInterrupt:
        if (folder / RECIPE_FILE).exists():
            console.print(f"stopped; go on with: {again}", highlight=False)
        raise
    if profile is not None:
        console.print(profile.told(), highlight=False, markup=False, soft_wrap=True)
    console.print(f"done: weights in {folder}/model, curve in {folder}/curve.png")
    console.print(f"serve it: stepwell serve --run {folder}")


def _list_algorithms(console: Console) -> None:
    about = {name: (kind.__doc__ or "").splitlines()[0] for name, kind in ALGORITHMS.items()}
    console.print("algorithms")
    _list_names(console, about)
    sources = {name: load_preset(name).source for name in preset_names()}
    console.print("\npresets: what papers and their code were published with (docs/papers.md)")
    _list_names(console, {name: f"{source.paper}; {source.version}" for name, source in sources.items()})


def _list_names(console: Console, about: Mapping[str, str]) -> None:
    for name, text in about.items():
        console.print(f"  {name:<22} {text}", highlight=False, soft_wrap=True)


def _used(algorithm: str | None) -> list[str]:
    return [] if algorithm is None else [f"algorithm.use={algorithm}"]


def what_to_run(
    arguments: Sequence[str], resume: Path | None, folder: Path | None, chosen: Sequence[str] = ()
) -> tuple[RecipeConfig, Path]:
    """The recipe, with its settings on top of those `chosen` before, and the folder of its run.

    Raises:
        InvalidRequest: not one recipe was named, or the folder holds another run.
    """
    files = [a for a in arguments if "=" not in a]
    overrides = [*chosen, *(a for a in arguments if "=" in a)]
    if resume is not None:
        if files or folder:
            raise InvalidRequest("--resume goes on with that run's own recipe and folder; give only settings beside it")
        return read_recipe(resume, overrides), resume
    if len(files) > 1:
        raise InvalidRequest(f"one recipe at a time, got {', '.join(files)}")
    if not files:
        raise InvalidRequest("name a recipe: a YAML file or a shipped one, such as `stepwell train lookup`")
    if folder and (folder / RECIPE_FILE).exists():
        raise InvalidRequest(f"{folder} holds a run already: go on with it by --resume {folder}, or choose another")
    recipe = load_config(RecipeConfig, find_recipe(files[0]), overrides)
    return recipe, folder or fresh_folder(Path("runs"), recipe.name)
