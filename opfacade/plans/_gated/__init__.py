"""Gated activations as programs: maps of gate and up, and folds where their scales are computed."""
