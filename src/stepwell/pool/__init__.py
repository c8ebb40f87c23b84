"""The durable, append-only pool of step records."""
