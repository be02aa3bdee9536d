"""Faults planted in the sampling of rows that p and min_p filter alone."""

from tests.mutation.mutant import Mutant

_K, _TESTS = "kernels/sampling", "tests/families/sampling/test_kept_stream.py"


def _kept(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_TESTS} -k {words}")


def _anywhere(name, old, new, words):
    tests = f"tests/families/sampling/test_rows_anywhere.py -k {words}"
    return Mutant(f"sampling: {name}", f"{_K}/row_operands.cuh", ((old, new),), tests=tests)


FAULTS = (
    _kept(
        "numbers beyond f32 in octaves are usual", "rough.cuh", "usual = fabsf(top_) < 4096.f &&", "usual = true ||", "extreme"
    ),
    _kept(
        "a front has its winner alone",
        "front.cuh",
        "other.place > own.place ? other.wins(own)",
        "other.wins(own) ? true",
        "rejected",
    ),
    _kept(
        "equal logits are not before a place",
        "rough.cuh",
        "token / 4 < group_[i] ? below_[i] : x_[i]",
        "x_[i]",
        "share_that_ends",
    ),
    _anywhere(
        "words that rows share are not shifted",
        "late ? words[i][j] >> 16 | words[i][j + 1] << 16 : words[i][j]",
        "words[i][j]",
        "draw",
    ),
    _anywhere("a group of single elements has one of them", "from + step * i)[j];", "from + step * i)[0];", "draw"),
)
