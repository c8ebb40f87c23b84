"""Commands; the only place where concrete classes meet."""
