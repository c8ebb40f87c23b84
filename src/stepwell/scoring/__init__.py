"""Rewards after the fact: scorers look at stored trajectories, and what they find becomes annotations."""
