"""Credit assignment: one small file per algorithm, pure functions of arrays, and the table that names them."""
