"""Rows of token ids merged where they are equal from their start, so that no shared token is computed twice."""
