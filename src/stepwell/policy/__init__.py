"""The trainable model: log-probabilities, values, and weights by version."""
