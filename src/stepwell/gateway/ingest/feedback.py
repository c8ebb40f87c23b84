"""What people say and do around an agent's work: feedback on an answer, and the turns of a live product.

Both become annotations. What they are about is named in one of three ways: a step's id; the id of an answer as the
client got it; or the key of a conversation, which is a trajectory's id or what the client itself calls its session.
"""

from dataclasses import replace
from typing import Final, Literal

from pydantic import ConfigDict, Field, model_validator

from stepwell.gateway.callers import trajectory_of_session
from stepwell.gateway.ingest.context import Context
from stepwell.gateway.ingest.wire import Item
from stepwell.types import Annotation, Record, TrajectoryInfo, new_id

_ANSWER_PREFIXES: Final = ("chatcmpl-", "cmpl-", "resp_", "msg_")
_STATEMENTS: Final = ("thumbs", "score", "edit", "comment")
Target = Literal["step", "trajectory"]


class About(Item):
    """What something is about."""

    step_id: str = ""
    """A step, as the header `x-stepwell-step` of its answer names it; or"""
    response_id: str = ""
    """the `id` of an answer, in any dialect; or"""
    conversation: str = Field(default="", max_length=4096)
    """a conversation: the id of its trajectory, or the client's own session id."""

    @property
    def step(self) -> str:
        """Id of the step that is meant; empty if none is named."""
        if self.step_id:
            return self.step_id
        prefix = next((known for known in _ANSWER_PREFIXES if self.response_id.startswith(known)), "")
        return self.response_id.removeprefix(prefix)

    @property
    def target(self) -> tuple[Target, str]:
        """What is annotated: its kind and id."""
        return ("step", self.step) if self.step else ("trajectory", trajectory_of_session(self.conversation))


class FeedbackWire(About):
    """What a person thinks of an answer, or of a whole conversation: one statement, with a comment if wanted."""

    looks = True

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"response_id": "chatcmpl-step-0198c2f0", "thumbs": "down", "comment": "The date is wrong."},
                {"conversation": "task-42-run-1", "score": 0.8, "reward": True},
                {"step_id": "step-0198c2f0", "edit": "It was 1969."},
            ]
        }
    )

    id: str = ""
    """Yours; the same again is a no-op. Left out: a new one."""
    thumbs: Literal["up", "down"] | None = None
    """Good or bad; or"""
    score: float | None = None
    """a number, on whatever scale you use; or"""
    edit: str | None = Field(default=None, min_length=1)
    """the answer as it should have been. Of a conversation: its last one."""
    comment: str | None = Field(default=None, min_length=1)
    """Free text, with thumbs or a score or alone."""
    reward: bool = False
    """Whether thumbs (1 or -1) or the score also count as the reward part `feedback`. Where the gateway has a rule for
    that (`gateway.feedback_reward`), the rule's word comes first."""
    created_at: float = 0.0
    """Unix time in seconds; left out: now."""

    @model_validator(mode="after")
    def _one_statement(self) -> "FeedbackWire":
        if sum(map(bool, (self.step_id, self.response_id, self.conversation))) != 1:
            raise ValueError("give one of step_id, response_id and conversation")
        given = [name for name in _STATEMENTS if getattr(self, name) is not None]
        alone = [name for name in given if name != "comment"]
        if not given or len(alone) > 1 or (self.edit is not None and len(given) > 1):
            raise ValueError("give one of thumbs, score, edit and comment; a comment may go with thumbs or a score")
        if self.reward and self._value is None:
            raise ValueError("only thumbs or a score can be a reward")
        return self

    @property
    def _value(self) -> float | None:
        return {"up": 1.0, "down": -1.0}[self.thumbs] if self.thumbs else self.score

    def records(self, context: Context) -> tuple[Record, ...]:
        """See `Item`: the feedback, and the reward if it is one."""
        target, target_id = self.target
        if self.edit is not None and target == "trajectory":
            target, target_id = "step", context.last_step(target_id)
        note = Annotation(
            id=self.id or new_id("note"),
            target=target,
            target_id=target_id,
            kind="feedback",
            name=next(name for name in _STATEMENTS if getattr(self, name) is not None),
            value=self._value,
            text=self.edit or self.comment or "",
            **({"created_at": self.created_at} if "created_at" in self.model_fields_set else {}),
        )
        worth = context.feedback.reward(note) if context.feedback else None
        if worth is None and self.reward:
            worth = note.value
        if worth is None or (self.id and context.knows(note)):  # sent again: its reward was decided the first time
            return (note,)
        return note, replace(note, id=f"{note.id}~reward", kind="reward", name="feedback", value=worth)


class EventWire(About):
    """One turn of a live product's conversation, or something else that happened in it."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"id": "e1", "conversation": "chat-7", "type": "user_turn", "text": "Where is my order?"}]
        }
    )

    id: str = ""
    """Yours; the same again is a no-op. Left out: a new one."""
    type: str = Field(min_length=1, max_length=256)
    """`user_turn`, `assistant_turn`, `system`, or a name of yours."""
    text: str = ""
    """What was said."""
    created_at: float = 0.0
    """Unix time in seconds at which it happened; left out: now."""

    @model_validator(mode="after")
    def _somewhere(self) -> "EventWire":
        if not (self.conversation or self.step):
            raise ValueError("give the conversation, or the step_id or response_id of the answer that it is about")
        return self

    def opener(self) -> Record | None:
        """See `Item`: the trajectory of the conversation, unless the event is about an answer."""
        target, target_id = self.target
        return TrajectoryInfo(id=target_id, source="events") if target == "trajectory" else None

    def records(self, context: Context) -> tuple[Record, ...]:  # noqa: ARG002 - nothing to look up
        """See `Item`."""
        target, target_id = self.target
        given = self._given("step_id", "response_id", "conversation", "type")
        return (Annotation(target=target, target_id=target_id, kind="event", name=self.type, **given),)
