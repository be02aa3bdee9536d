"""Faults planted in the sampling of rows that p and min_p filter alone."""

from tests.mutation.mutant import Mutant

_K, _TESTS = "kernels/sampling", "tests/families/sampling/test_kept_stream.py"


def _kept(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_TESTS} -k {words}")


FAULTS = (
    _kept(
        "numbers beyond f32 in octaves are usual", "rough.cuh", "usual = fabsf(top) < 4096.f &&", "usual = true ||", "extreme"
    ),
)
