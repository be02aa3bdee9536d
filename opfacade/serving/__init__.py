"""State of a serving loop beside its plans: one workspace, and the plans of the batch sizes of captured graphs."""
