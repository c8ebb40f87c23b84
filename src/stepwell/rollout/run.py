"""One trajectory: an agent acts in an environment until it ends, and each fact is recorded as it becomes known."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from pydantic import Field

from stepwell.config import Config
from stepwell.errors import ContextOverflow, StepwellError
from stepwell.pool.base import Receipt
from stepwell.rendering.messages import Message
from stepwell.rollout.agent import Agent
from stepwell.rollout.env import Environment, Outcome
from stepwell.types import Annotation, End, Record, TrajectoryInfo

_log: Final = logging.getLogger(__name__)


class Log(Protocol):
    """Where facts go: a pool, or a pool's client."""

    def append(self, records: Sequence[Record]) -> Future[list[Receipt]]:
        """As `stepwell.pool.base.Pool.append`."""
        ...


class RolloutConfig(Config):
    """Limits of every trajectory."""

    group_size: int = Field(default=8, ge=1)
    """Trajectories of each task that are compared with each other."""
    max_turns: int = Field(default=16, ge=1)
    """A trajectory with so many steps is truncated."""
    final_state: bool = True
    """A truncated trajectory ends with one more call, of one token, that shows the policy the state in which it was cut
    off: a critic values it (see `bootstrap_on_truncation`), and nothing acts on the answer."""
    concurrency: int = Field(default=32, ge=1)
    """Trajectories that run at once."""
    max_failures: int = Field(default=3, ge=0)
    """Failed trajectories of one group that are replaced before the rollout is given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a trajectory went."""

    trajectory_id: str
    how: End
    why: str = ""
    reward: float = 0.0
    turns: int = 0


async def record(log: Log, *records: Record) -> None:
    """Append and wait until it is durable; raises the first refusal."""
    for receipt in await asyncio.wrap_future(log.append(records)):
        if receipt.error is not None:
            raise receipt.error


async def run_trajectory(
    info: TrajectoryInfo, environment: Environment, agent: Agent, log: Log, config: RolloutConfig
) -> Ending:
    """Play one episode. Whatever goes wrong is recorded as a failed trajectory; only cancellation is passed on.

    An episode that ends without having earned anything is recorded with reward 0: that it earned nothing is known.
    """
    await record(log, info)
    try:
        ending = await _play(info, environment, agent, log, config)
    except asyncio.CancelledError:
        await record(log, Annotation.end(info.id, "failed", "cancelled"))
        raise
    except Exception as error:  # a rollout that breaks is data, whatever broke it
        ending = Ending(trajectory_id=info.id, how="failed", why=f"{type(error).__name__}: {error}")
    await record(log, Annotation.end(info.id, ending.how, ending.why))
    return ending


async def _play(
    info: TrajectoryInfo, environment: Environment, agent: Agent, log: Log, config: RolloutConfig
) -> Ending:
    messages = list(await asyncio.to_thread(environment.reset, info.task_id))
    total, parts_seen = 0.0, 0
    outcome, why, turns, fits = Outcome(), "", 0, True
    while not (outcome.terminated or outcome.truncated):
        if turns == config.max_turns:
            outcome, why = Outcome(truncated=True), f"{turns} turns"
            break
        try:
            action = await agent.act(info.id, messages, environment.tools)
        except ContextOverflow as overflow:
            outcome, why, fits = Outcome(truncated=True), str(overflow), False
            break
        turns += 1
        outcome = await asyncio.to_thread(environment.step, action.message)
        messages += [action.message, *outcome.messages]
        total += outcome.reward
        parts_seen += len(outcome.reward_parts)
        if outcome.reward_parts:
            await record(log, *_rewards(action.step_id, outcome))
    if outcome.truncated and turns and fits and config.final_state:
        await _look(agent, info.id, messages, environment)
    if not parts_seen:
        await record(log, Annotation.reward("trajectory", info.id, 0.0))
    how: End = "terminated" if outcome.terminated else "truncated"
    return Ending(trajectory_id=info.id, how=how, why=why, reward=total, turns=turns)


async def _look(agent: Agent, trajectory_id: str, messages: Sequence[Message], environment: Environment) -> None:
    """Show the policy where it was cut off. The episode is what it is, whether that works or not."""
    try:
        await agent.look(trajectory_id, messages, environment.tools)
    except StepwellError as error:
        _log.warning("the state after %s was not recorded: %s", trajectory_id, error)


def _rewards(step_id: str, outcome: Outcome) -> list[Annotation]:
    return [Annotation.reward("step", step_id, value, name) for name, value in outcome.reward_parts]
