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


class NotFound(StepwellError, LookupError):
    """A trajectory, step, group, lease or model with that id does not exist."""


class Conflict(StepwellError):
    """The request contradicts a stored fact: the same id with other content, or a step after the trajectory's end."""


class ContextOverflow(InvalidRequest):
    """Prompt and requested completion do not fit in the model's context window."""


class EngineError(StepwellError, RuntimeError):
    """The engine failed while sampling; the same request may succeed later."""


class EnvironmentFailed(StepwellError, RuntimeError):
    """The environment, not the policy, failed: the trajectory is recorded as failed and gets no reward."""


class PoolError(StepwellError, RuntimeError):
    """The pool's storage failed (disk full, locked, corrupt); what was acknowledged before stays stored."""


class ConfigError(StepwellError, ValueError):
    """A setting is unknown, contradictory or out of range."""


class MissingDependency(StepwellError, ImportError):
    """An optional package or asset is not installed; the message has the command that installs it."""


class NonFiniteUpdate(StepwellError, ArithmeticError):
    """The loss or its gradient is NaN or infinite; the weights were left as they were."""
