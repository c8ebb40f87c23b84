"""A run in several processes: who plays, who samples and who learns, each of which may die and begin again."""
