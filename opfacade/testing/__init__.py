"""Shared code of tests, demo, verification and benchmarks: inputs, random problems, the oracle and the error bound."""
