"""Task sets and their environments, one file each, and the table that names them."""
