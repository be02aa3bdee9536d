"""Faults planted in the sampling of rows whose only filters are p and min_p."""

from tests.mutation.mutant import Mutant

_K, _TESTS = "kernels/sampling", "tests/families/sampling/test_kept_stream.py"


def _kept(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_TESTS} -k {words}")


def _front(name, old, new):
    tests = "tests/families/sampling/test_front.py"
    return Mutant(f"sampling: {name}", f"{_K}/front.cuh", ((old, new),), tests=tests)


def _anywhere(name, old, new, words):
    tests = f"tests/families/sampling/test_rows_anywhere.py -k {words}"
    return Mutant(f"sampling: {name}", f"{_K}/row_operands.cuh", ((old, new),), tests=tests)


FAULTS = (
    Mutant(
        "sampling: a min_p of NaN keeps the most likely token alone",
        f"{_K}/kept.cuh",
        (("p.min_p[row] > 0.f ?", "!(p.min_p[row] <= 0.f) ?"),),
        tests="tests/families/sampling/test_emulated.py -k share_of_nan",
    ),
    _kept(
        "a front has its winner alone",
        "front.cuh",
        "lost |= (other.place > own.place) & other.wins(own);\n      }\n      if (any",
        "lost |= other.wins(own);\n      }\n      if (any",
        "rejected",
    ),
    _kept("a bound has no margin and no room for noise", "front.cuh", "32.f + 0x1p-5f)};", "0.f)};", "proven"),
    _front(
        "a bound is one bit too high", "__float_as_uint(fmaxf(key - lift, 0.f))", "__float_as_uint(fmaxf(key - lift, 0.f)) + 1"
    ),
    _front("a bound is too low", "fmaxf(key - lift, 0.f)", "fmaxf(key - lift - 0.0625f, 0.f)"),
    _front("a token bounds those that are as likely", "int kApart = 2;", "int kApart = 0;"),
    _kept(
        "groups that are not listed are not examined",
        "front_race.cuh",
        "close != 0)) look(first, close);",
        "close != 0)) return;",
        "p_alone",
    ),
    _kept("no more than a list's room of tokens is noted", "front.cuh", "shared_.count > kFrontRoom", "false", "overflows"),
    _kept("a chunk has three groups", "front_race.cuh", "is ? 1u << i : 0", "is && i < 3 ? 1u << i : 0", "proven"),
    _kept(
        "a place has no equal tokens in its group",
        "rough.cuh",
        "place == i ? count",
        "place == i ? 0.f * count",
        "share_that_ends",
    ),
    _kept("a chunk with a place is added as one without", "rough.cuh", "&& !has_place(base)", "", "equal_tokens"),
    _kept(
        "quotients that tie are told apart",
        "rough.cuh",
        "if (ties_ && __syncthreads_or(sums.tied)) add_tied",
        "if (false) add_tied",
        "quotients",
    ),
    _kept("octaves of one CTA are summed", "joint.cuh", "for (int from = 0; from <", "for (int from = 1; from <", "rejected"),
    _kept(
        "equal logits are not before a place",
        "rough.cuh",
        "token / 4 < group_[i] ? below(x_[i]) : x_[i]",
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
