"""Kinds of random problems for `bench.sweep`: a module each, with `problems(draw)`, which yields them without end."""
