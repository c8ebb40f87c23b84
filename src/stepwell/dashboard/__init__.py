"""Pages over the pool: what was collected and what it taught."""
