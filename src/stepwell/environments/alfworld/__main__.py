"""Make ALFWorld-domain games: `python -m stepwell.environments.alfworld FOLDER`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from stepwell.environments.alfworld.making import make_games
from stepwell.environments.alfworld.tasks import TASK_TYPES
from stepwell.errors import StepwellError


def main(
    folder: Annotated[Path, typer.Argument(help="Where the games go, into folders train, valid_seen, valid_unseen.")],
    train: Annotated[int, typer.Option(min=0, help="Games to train on.")] = 24,
    valid_seen: Annotated[int, typer.Option(min=0, help="Games to test on, in rooms that are trained in.")] = 6,
    valid_unseen: Annotated[int, typer.Option(min=0, help="Games to test on, in rooms that are not.")] = 6,
    task_type: Annotated[
        list[str] | None, typer.Option(help=f"Only these types; may be given again. All: {', '.join(TASK_TYPES)}.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Other seeds make other games.")] = 0,
) -> None:
    """Make ALFWorld-domain games (self-made), each of which a planner has won.

    What is learnt on them are no ALFWorld results: those are for the published games, which alfworld-download fetches.
    """
    try:
        for split, count in (("train", train), ("valid_seen", valid_seen), ("valid_unseen", valid_unseen)):
            types = task_type or TASK_TYPES
            make_games(folder, count, types, seed, split=split, made=lambda path: print(path.parent, flush=True))  # type: ignore[arg-type]  # it checks them
    except StepwellError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(1) from error


if __name__ == "__main__":
    typer.run(main)
