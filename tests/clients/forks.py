"""A client that nobody changed, forked at each of its steps: the record answers it up to there, and then the engine."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.gateway.app import create_app
from stepwell.gateway.config import GatewayConfig
from stepwell.pool.store import SQLitePool
from stepwell.types import GroupInfo, Step, TrajectoryInfo
from tests.clients.models import Model
from tests.clients.roster import Client
from tests.clients.sandbox import Ended, Site, drive, settle
from tests.clients.stage import stored_in
from tests.clients.tutor import Tutor
from tests.fakes.servers import serving

_TRUNK = "trunk"


@dataclass(frozen=True, kw_only=True)
class Forked:
    """What became of the forks of one client."""

    turns: int
    """Steps of the trunk, each of which was taken anew."""
    refused: tuple[str, ...]
    """What was not as it should be."""

    def __str__(self) -> str:
        return f"{self.turns - len(self.refused)} of {self.turns}"


def fork_everywhere(client: Client, model: Model) -> Forked:
    """Record a client, and start it again for each of its steps, in a trajectory that is forked there."""
    with tempfile.TemporaryDirectory(prefix="stepwell-client-") as folder, stored_in(Path(folder)) as pool:
        tutor = Tutor(model.engine, client.lesson)
        app = create_app(tutor, model.renderer, pool, GatewayConfig(model_aliases=("*",)))
        with serving(app) as url:
            stage = _Stage(client, tutor, pool, url, Path(folder) / "home")
            stage.run(_TRUNK)
            own = stage.steps(_TRUNK)
            return Forked(turns=len(own), refused=tuple(stage.forks(own)))


@dataclass(frozen=True)
class _Stage:
    client: Client
    tutor: Tutor
    pool: SQLitePool
    url: str
    home: Path

    def run(self, trajectory: str) -> Ended:
        """In the same place each time: many clients tell the model where they are."""
        shutil.rmtree(self.home, ignore_errors=True)
        site = Site(url=f"{self.url}/t/{trajectory}", home=self.home)
        settle(site, self.client.files(site))
        return drive(site, self.client.command(site), self.client.seconds)

    def steps(self, trajectory: str) -> list[Step]:
        return [step for step in self.pool.trajectory(trajectory).steps if not step.side]

    def forks(self, own: list[Step]) -> Iterator[str]:
        for step in own:
            fork = f"fork-{step.index}"
            group = GroupInfo(task_id="t", size=1, origin_id=_TRUNK, origin_index=step.index)
            self.pool.put(group, TrajectoryInfo(id=fork, group_id=group.id))
            sampled = len(self.tutor.played)
            ended = self.run(fork)
            complaint = self._complaint(fork, step, len(self.tutor.played) - sampled, ended)
            if complaint:
                yield f"forked at step {step.index}: {complaint}"

    def _complaint(self, fork: str, taken: Step, sampled: int, ended: Ended) -> str:
        stored = self.pool.trajectory(fork)
        if stored.status == "failed":
            return stored.why
        if ended.status != 0:
            return f"exit status {ended.status}: {ended.output[-300:]}"
        if not stored.steps or stored.steps[0].index != taken.index:
            return "it did not get there"
        if not np.array_equal(stored.steps[0].prompt_ids, taken.prompt_ids):
            return "it got there in another state"
        return "" if sampled == len(stored.steps) else f"{sampled} answers were sampled for {len(stored.steps)} steps"
