"""Faults planted in sampling: its kernels, its reference, and the checks of both."""

from tests.mutation.mutant import Mutant

_HERE = "tests/families/sampling"
_K, _R, _H = "kernels/sampling", "opfacade/backends/reference/sampling", "opfacade/testing/families/sampling"


def _kernel(name, file, old, new, words="proven"):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_emulated.py -k {words}")


def _wide(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_wide_sets.py -k {words}")


def _stream(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_stream.py -k {words}")


def _large(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_large_numbers.py -k {words}")


def _host(name, file, old, new, tests="test_reference.py"):
    return Mutant(f"sampling: {name}", file, ((old, new),), tests=f"{_HERE}/{tests}")


FAULTS = (
    _kernel(
        "the slot is in the counter of a race",
        "race.cuh",
        "p.offset[row], p.stream)",
        "p.offset[row], p.stream + row)",
    ),
    _wide(
        "the slot is in the counter of a list",
        "filtered.cuh",
        "p.stream);\n  uint64_t best = 0;\n",
        "p.stream + blockIdx.x);\n  uint64_t best = 0;\n",
        "exact",
    ),
    Mutant(
        "sampling: ties go to the higher id",
        f"{_K}/order.cuh",
        (
            ("<< 32 | ~token;", "<< 32 | token;"),
            ("return ~static_cast<uint32_t>(ranked);", "return static_cast<uint32_t>(ranked);"),
        ),
        tests=f"{_HERE}/test_emulated.py -k proven",
    ),
    _kernel(
        "the upper word of the offset is lost",
        "noise.cuh",
        "static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32)",
        "0u",
    ),
    _kernel(
        "the upper word of the seed is lost", "noise.cuh", "static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)", "0u"
    ),
    _kernel(
        "the last CTA of a row is left out",
        "cluster_row.cuh",
        "rank < ctas_ ? words_of",
        "rank < max(1, ctas_ - 1) ? words_of",
        "number_of_ctas",
    ),
    _kernel(
        "buckets of the last CTA are left out",
        "select.cuh",
        "rank < cluster.ctas(); rank",
        "rank < max(1, cluster.ctas() - 1); rank",
        "number_of_ctas",
    ),
    Mutant(
        "sampling: a group finds the last bias of its chain alone",
        f"{_K}/bias_list.cuh",
        (("i != kEnd; i = next[i])", "i != kEnd; i = kEnd)"),),
        tests=f"{_HERE}/test_adjust.py -k long_list",
    ),
    Mutant(
        "sampling: the last round has no room for all rows",
        "csrc/sampling/split.h",
        (("clusters = whole + ceil_div(rest * last, ctas);", "clusters = whole + rest * last / ctas;"),),
        tests=f"{_HERE}/test_short_k.py -k team",
    ),
    Mutant(
        "jit: clusters at once are those of another shape",
        "csrc/common/launch.h",
        (("if (known >> kCountBits == shape) return", "if (known != 0) return"),),
        tests="tests/jit/host/test_clusters.py",
    ),
    _stream("the other group of two is passed over", "stream.cuh", "? 0 : 2u << i;", "? 0 : 0u;", "late"),
    _stream(
        "groups are fetched again",
        "stream.cuh",
        "if (base_ < due) fetch();",
        "if (base_ < due) base_ -= kChunk, fetch(), base_ += kChunk;",
        "late",
    ),
    _stream(
        "biases after the first ones are passed over",
        "stream.cuh",
        "num_biases; at += kSampleThreads) {",
        "num_biases; at += 1 << 20) {",
        "raises",
    ),
    _large("a product that is no number is lost", "noise.cuh", "(most < kLargest ?", "(!(most >= kLargest) ?", "no_number"),
    _stream("a bound of a cap has no margin", "row.cuh", "cap, cap * 0x1p-10f);", "cap, 0.f);", "cap_bounds"),
    _host(
        "presence is subtracted from every token of the prompt",
        f"{_R}/adjust.py",
        "torch.where(used, a - f",
        "torch.where(args.prompt_mask | used, a - f",
        "test_race.py",
    ),
    _host("any key is near enough", f"{_H}/judged.py", "return lack / float(", "return 0.0 * lack / float(", "test_race.py"),
    _host(
        "any logprob is near enough",
        f"{_H}/judged.py",
        "2.0**-24 * np.abs(want) + row.spread",
        "1.0 + row.spread",
        "test_race.py",
    ),
)
