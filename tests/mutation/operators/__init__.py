"""Faults that mutation operators create from any line: `python -m tests.mutation.operators --seed N --count K`."""
