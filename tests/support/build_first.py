"""Kernels of many tests, compiled before the first of these tests."""

import os

from opfacade.testing import prebuilt


def build_first(descriptors):
    """Compiles in parallel if one process runs all tests. Workers of xdist run in parallel anyway: each compiles the kernels of
    its own tests, because selecting the plans of all tests takes minutes."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        prebuilt.build(descriptors)
