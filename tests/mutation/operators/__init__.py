"""Faults that operators make from any line: `python -m tests.mutation.operators --seed N --count K`."""
