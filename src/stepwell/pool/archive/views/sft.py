"""The view `sft`: conversations to imitate, in OpenAI's chat format, which trainers and fine-tuning services read."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from stepwell.pool.archive.conversation import MessageRow, Reads, chat_request, message_rows, said, tool_rows, writable
from stepwell.pool.archive.entries import Entry
from stepwell.pool.archive.lines import main_line
from stepwell.pool.archive.table import Row
from stepwell.types import Step, Trajectory


class ConversationRow(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Conversations of agents, as chat messages."""

    messages: list[MessageRow]
    """All that was said; the last message is the assistant's."""
    tools: Annotated[Any, msgspec.Meta(extra={"json": True})] = None
    """What the policy could call, as JSON text in Parquet; null if nothing."""
    trajectory_id: str
    step_id: str
    """The step whose answer is the last message."""
    group_id: str | None = None
    task_id: str = ""
    model: str = ""
    reward: float | None = None
    """Of the trajectory, or, if `per` is `step`, of the step."""

    def weight(self) -> int:
        """See `Row`."""
        return 512 + sum(len(message.content) + 256 for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversations:
    """The view `sft`."""

    per: Literal["trajectory", "step"] = "trajectory"
    """One row per trajectory: its main line, so that neither side calls nor histories that the client began anew are in
    it. Or one per step that is no side call: what it was asked and answered."""
    min_reward: float | None = None
    """Leave out what has less reward, or none; None: take everything."""
    reads: Reads = chat_request
    """How requests are understood."""

    @property
    def row(self) -> type[Row]:
        """See `View`."""
        return ConversationRow

    def rows(self, entries: Iterable[Entry], skipped: Counter[str]) -> Iterator[Row]:
        """See `View`."""
        for trajectory in (entry.trajectory for entry in entries if entry.trajectory):
            for step, reward in self._chosen(trajectory):
                if self.min_reward is not None and (reward is None or reward < self.min_reward):
                    skipped["reward below the threshold"] += 1
                    continue
                row = self._row(trajectory, step, reward)
                if row is None:
                    skipped["no messages of text"] += 1
                else:
                    yield row

    def _chosen(self, trajectory: Trajectory) -> Iterator[tuple[Step, float | None]]:
        if self.per == "trajectory":
            yield from ((step, trajectory.reward) for step in main_line(trajectory.steps)[-1:])
            return
        for step, reward in zip(trajectory.steps, trajectory.step_rewards, strict=True):
            if not step.side:
                yield step, None if trajectory.reward is None else reward

    def _row(self, trajectory: Trajectory, step: Step, reward: float | None) -> ConversationRow | None:
        conversation = said(step, self.reads)
        if conversation is None or not writable(conversation):
            return None
        return ConversationRow(
            messages=message_rows(conversation.messages),
            tools=tool_rows(conversation.tools),
            trajectory_id=trajectory.info.id,
            step_id=step.id,
            group_id=trajectory.info.group_id,
            task_id=trajectory.info.task_id,
            model=step.model,
            reward=reward,
        )
