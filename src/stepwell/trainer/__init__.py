"""Leases ready groups, turns them into credit, and updates the policy."""
