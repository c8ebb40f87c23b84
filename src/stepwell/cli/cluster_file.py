"""What a cluster file says: which nodes there are, and what is trained on them. `stepwell up` reads it."""

import math
import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from stepwell.cli.config import RecipeConfig
from stepwell.config import Config
from stepwell.errors import ConfigError

_HERE: Final = ("localhost", "127.0.0.1")


class NodeConfig(Config):
    """One node: a machine, or a part of one."""

    host: str = Field(pattern=r"^\w[\w.@:%-]*$")
    """`localhost`, or what ssh knows the machine by."""
    cpus: int | None = Field(default=None, ge=0)
    """CPUs that it offers to players and to the learner's ranks but the first, who take one each; null: as many as it
    has."""
    gpus: int | None = Field(default=None, ge=0)
    """GPUs that it offers; null: as many as it has. Neither players nor the learner ask Ray for any."""
    python: str | None = None
    """The Python there that has Stepwell and Ray; null: the path of the one that runs `stepwell up`."""

    @property
    def local(self) -> bool:
        """Whether it is this machine, as far as the file says."""
        return self.host in _HERE


class ClusterConfig(Config):
    """A Ray cluster that Stepwell starts and stops, and the run on it."""

    nodes: tuple[NodeConfig, ...] = Field(min_length=1)
    """The nodes, the head first. One must be `localhost`: it learns there, and its gateway serves from there."""
    ssh: str = "ssh -o BatchMode=yes {host}"
    """How a command is run on another machine; the command is added as one more argument."""
    address: str | None = None
    """By which the nodes reach the head; null: its host, or for `localhost` what Ray finds."""
    port: int = Field(default=6379, ge=1, le=65535)
    """Of the head."""
    dashboard: bool = False
    """Whether the head serves Ray's own pages and takes jobs, which needs `pip install 'ray[default]'` there."""
    token: bool | None = None
    """Whether Ray lets in only those who have its token, the same `~/.ray/auth_token` on each node; null: as
    RAY_AUTH_MODE says, or else if this machine has one."""
    patience: float = Field(default=120.0, gt=0)
    """Seconds within which a node must have started, and all must have joined."""
    recipe: str
    """As for `stepwell train`: a file, or a shipped name."""
    settings: tuple[str, ...] = ()
    """Of the recipe, as `section.key=value`; `mode=ray` is set."""
    folder: Path | None = None
    """Of the run; one that holds a run already is gone on with. null: runs/NAME-TIME."""
    gateway_port: int = Field(default=0, ge=0, le=65535)
    """Of the gateway, which players on other machines must reach; 0 takes a free one."""

    @property
    def auth_mode(self) -> str:
        """What RAY_AUTH_MODE is to be, for all nodes and for this process."""
        own = Path("~/.ray/auth_token").expanduser()
        if self.token is None and (said := os.environ.get("RAY_AUTH_MODE")):
            return said
        return "token" if self.token or (self.token is None and own.exists()) else "disabled"

    @model_validator(mode="after")
    def _can_be_reached(self) -> "ClusterConfig":
        if "{host}" not in self.ssh:
            raise ValueError("ssh must say where {host} goes, as in `ssh -o BatchMode=yes {host}`")
        if not any(node.local for node in self.nodes):
            raise ValueError(
                "one of the nodes must be `host: localhost`, with `cpus: 0` if it shall not play: the run joins the "
                "cluster from this machine, and Ray lets it in only through a node of the same machine"
            )
        return self


def check_run(config: ClusterConfig, recipe: RecipeConfig) -> None:
    """That this recipe can run on that cluster, before anything is started. Raises ConfigError."""
    if recipe.mode != "ray":
        raise ConfigError(f"a cluster needs mode=ray, but its settings say mode={recipe.mode}: leave that out")
    afar = [node.host for node in config.nodes if not node.local]
    if afar and not _is_reached_from_afar(recipe.pool):
        where = recipe.pool or "the pool"
        raise ConfigError(
            f"players on {afar[0]} record what they play in the pool, and {where} is only on this machine: add the "
            "setting pool=postgresql://user@host/stepwell, with a host that all nodes reach"
        )
    offered = sum(math.inf if node.cpus is None else node.cpus for node in config.nodes)
    workers, ranks = recipe.rollout.workers, recipe.learner.ranks - 1
    if offered < workers + ranks:
        others = f", as {ranks} more ranks of the learner do" if ranks else ""
        raise ConfigError(
            f"{workers} players take one CPU each{others}, and the nodes offer {offered}: "
            + (f"set rollout.workers={offered - ranks}" if offered > ranks else "give one of them more `cpus`")
        )


def _is_reached_from_afar(pool: str | None) -> bool:
    return pool is not None and "://" in pool and urlsplit(pool).hostname not in (None, "", "::1", *_HERE)
