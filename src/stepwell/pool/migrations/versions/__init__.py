"""One file for each revision of the schema. A revision never changes once it is released."""
