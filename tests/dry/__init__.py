"""Finds the kernels that the GPU tests build, without a GPU: the tests run, but nothing is computed.

`python -m tests.dry LIST` writes one line of JSON for each kernel, `scripts/bundle FILE` makes one bundle of all kernels. With
it the whole suite runs on a GPU machine without a compiler. A list by descriptors is never complete, because tests derive
problems from problems.
"""
