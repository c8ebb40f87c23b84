"""How good a policy is: benchmarks by name, items that outlive a kill, and what they come to, with intervals."""
