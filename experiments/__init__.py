"""The papers' claims, tried at a size that one core runs in an hour: `python -m experiments`."""
