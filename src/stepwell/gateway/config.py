"""The gateway's settings."""

from pydantic import Field

from stepwell.config import Config


class GatewayConfig(Config):
    """How the gateway treats its clients."""

    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body, in bytes."""
    default_max_tokens: int = Field(default=4096, ge=1)
    """Upper bound on the tokens of an answer when the call names none."""
    max_sessions: int = Field(default=1024, ge=1)
    """Idle trajectories whose ids are kept in memory; others are read back from the pool when a call comes."""
