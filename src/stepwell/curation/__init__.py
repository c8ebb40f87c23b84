"""What may be trained on: rules over trajectories and groups, and selections of them."""
