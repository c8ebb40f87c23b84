"""Other people's trainers fed from a pool: one module per trainer, each an extra of its own."""
