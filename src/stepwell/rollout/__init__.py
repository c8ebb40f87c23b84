"""Running a policy in environments."""
