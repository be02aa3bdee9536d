"""Formats of weights with few bits, and the layouts of checkpoints that store them."""
