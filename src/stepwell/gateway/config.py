"""The gateway's settings."""

from pydantic import Field

from stepwell.config import Config
from stepwell.curation.feedback import FeedbackRule
from stepwell.gateway.admission import AdmissionConfig


class GatewayConfig(Config):
    """How the gateway treats its clients."""

    model_aliases: tuple[str, ...] = ()
    """Other names by which clients may ask for the model; `*` stands for any."""
    max_body_bytes: int = Field(default=32 * 1024 * 1024, ge=1024)
    """Largest request body, in bytes."""
    body_seconds: float = Field(default=60.0, gt=0)
    """Longest time that a client may take to send a body, in seconds."""
    default_max_tokens: int = Field(default=4096, ge=1)
    """Upper bound on the tokens of an answer when the call names none."""
    max_sessions: int = Field(default=1024, ge=1)
    """Idle trajectories whose ids are kept in memory; others are read back from the pool when a call comes."""
    session_bytes: int = Field(default=512 * 2**20, ge=0)
    """Bytes that idle trajectories may take in memory, about; the longest unused are forgotten first."""
    max_calls: int = Field(default=512, ge=1)
    """Calls that run at once; further ones get 429 with Retry-After."""
    pause_seconds: float = Field(default=300.0, gt=0)
    """Longest time that a call waits for the end of a pause before it gets 503 with Retry-After."""
    drain_seconds: float = Field(default=30.0, ge=0)
    """Longest wait for calls under way when the server is told to stop."""
    ping_seconds: float = Field(default=15.0, gt=0)
    """A stream that is silent for so long sends something that clients ignore, so that nothing on the way closes it."""
    lease_wait_seconds: float = Field(default=600.0, ge=0)
    """Longest time that a lease waits for data, whatever its `wait`."""
    admission: AdmissionConfig | None = None
    """Let nothing new begin while a consumer has enough; None: everything may begin at any time."""
    feedback_reward: FeedbackRule | None = None
    """What feedback counts as the reward part `feedback`, when it arrives; None: only what itself says that it counts
    (`reward`)."""
    redact: tuple[str, ...] = ()
    """Regular expressions of what is removed from stored calls and answers; `secrets`: common forms of keys."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose web pages may call; `*` is all of them. Empty: none."""
    embeddings_url: str = ""
    """OpenAI-compatible server to which `/embeddings` is passed through; empty: there are no embeddings."""
    embeddings_key: str = ""
    """API key for it."""
