"""What pages show, as plain records read from the pool: one file per page, none knows of a browser."""
