"""Talk to a gateway from Python: sessions, groups, trajectories, steps, rewards, feedback, events."""
