"""Gated activations as programs: maps of gate and up, or folds if scales are computed."""
