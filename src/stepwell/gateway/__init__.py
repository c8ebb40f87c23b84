"""The model endpoint that agents are pointed at."""
