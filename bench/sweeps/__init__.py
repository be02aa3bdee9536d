"""Kinds of random problems for `bench.sweep`: one module per kind, whose `problems(draw)` yields problems endlessly."""
