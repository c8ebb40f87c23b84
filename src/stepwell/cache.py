"""The folder of things that are made or fetched once: converted models, corpora, indexes."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_directory() -> Path:
    """Where they are kept: `$STEPWELL_CACHE`, else `~/.cache/stepwell`. Not created here."""
    configured = os.environ.get("STEPWELL_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "stepwell"


def cached(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; if it is absent, `build` fills it.

    It is filled under another name and then renamed, so it appears whole or not at all; when two processes build it at
    once, the first to finish wins and both use that one.
    """
    final = cache_directory() / name
    if final.exists():
        return final
    final.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=f".{final.name}-") as parent:
        draft = Path(parent) / "draft"
        draft.mkdir()
        build(draft)
        try:
            draft.rename(final)
        except OSError:
            if not final.exists():
                raise
    return final
