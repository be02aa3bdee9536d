"""Tensors of programs, programs from Python functions, and the checks of maps."""
