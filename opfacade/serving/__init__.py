"""What a serving loop keeps beside its plans: one workspace, and the plans of the batch sizes that graphs are captured for."""
