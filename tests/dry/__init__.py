"""Which kernels the GPU tests build, found without a GPU: the tests run, and nothing is computed.

`python -m tests.dry LIST` writes one line of JSON for each kernel, `scripts/bundle FILE` makes one bundle of them all. From it
the whole suite runs on a GPU whose machine has no compiler. Lists by descriptor are never complete: tests derive problems
from problems.
"""
