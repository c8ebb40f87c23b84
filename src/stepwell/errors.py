"""The error vocabulary: each error is named after the boundary that was crossed.

Every layer raises these; only doors (the gateway's error table, the CLI's `main`, the rollout's recorder) turn them
into a status code, an exit code or an annotation. Each is also a subclass of the built-in that it refines, so that
code which knows nothing of Stepwell handles it sensibly.
"""


class StepwellError(Exception):
    """Base of all errors that Stepwell raises on purpose; the message names the mistake and the remedy."""


class InvalidRecord(StepwellError, ValueError):
    """A record breaks an invariant of its type: lengths, ranges, NaN. Nothing was stored."""


class InvalidRequest(StepwellError, ValueError):
    """A caller asked for something malformed or impossible; asking again unchanged cannot succeed."""

    def __init__(self, message: str = "", *, param: str | None = None) -> None:
        """`param`: place of the mistake in the request, such as `messages.0.role`, if it has one."""
        super().__init__(message)
        self.param = param


class NotFound(StepwellError, LookupError):
    """A trajectory, step, group, lease or model with that id does not exist."""


class Conflict(StepwellError):
    """The request contradicts a stored fact: the same id with other content, or a step after the trajectory's end."""


class ForkRefused(Conflict):
    """A trajectory cannot go on twice from that state: its environment, or its agent, does not do the same again."""


class ContextOverflow(InvalidRequest):
    """Prompt and requested completion do not fit in the model's context window."""


class EngineError(StepwellError, RuntimeError):
    """The engine failed while sampling; the same request may succeed later."""


class EngineTimeout(EngineError):
    """The engine did not answer in time."""


class Unauthorized(StepwellError):
    """The caller gave no key, or one that is not known here."""


class Forbidden(StepwellError):
    """The caller's key does not have the scope that the request needs."""


class RateLimited(StepwellError):
    """The caller is over its quota, or too many requests are in flight."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        """`retry_after`: seconds until it makes sense to ask again, if known."""
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(StepwellError):
    """Nothing is answered for now: the server pauses for new weights, drains, or has not started."""

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        """`retry_after`: seconds until it makes sense to ask again, if known."""
        super().__init__(message)
        self.retry_after = retry_after


class EnvironmentFailed(StepwellError, RuntimeError):
    """The environment, not the policy, failed: the trajectory is recorded as failed and gets no reward."""


class PoolError(StepwellError, RuntimeError):
    """The pool's storage failed (disk full, locked, corrupt); what was acknowledged before stays stored."""


class NoProducer(StepwellError, RuntimeError):
    """A consumer waits for data, and nobody is alive who could make any."""


class ConfigError(StepwellError, ValueError):
    """A setting is unknown, contradictory or out of range."""


class MissingDependency(StepwellError, ImportError):
    """An optional package or asset is not installed; the message has the command that installs it."""


class NonFiniteUpdate(StepwellError, ArithmeticError):
    """The loss or its gradient is NaN or infinite; the weights were left as they were."""


class RankDied(StepwellError, RuntimeError):
    """One of the processes that train a policy together died, and its part of the weights with it."""
