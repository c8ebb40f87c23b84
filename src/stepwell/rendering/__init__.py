"""Messages to token ids and back, with a model's own chat template and without torch."""
