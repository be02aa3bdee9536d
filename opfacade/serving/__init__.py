"""State of a serving loop: a shared workspace, and one plan per batch size of the captured graphs."""
