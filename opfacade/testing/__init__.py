"""What tests, demo, verification and benchmarks share: inputs, random problems, the oracle and the one error bound."""
