"""Faults planted in sampling: its kernels, its reference, and what holds both to the contract."""

from tests.mutation.mutant import Mutant

_HERE = "tests/families/sampling"
_K, _R, _H = "kernels/sampling", "opfacade/backends/reference/sampling", "opfacade/testing/families/sampling"


def _kernel(name, file, old, new, words="proven"):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_emulated.py -k {words}")


def _host(name, file, old, new, tests="test_reference.py"):
    return Mutant(f"sampling: {name}", file, ((old, new),), tests=f"{_HERE}/{tests}")


FAULTS = (
    _kernel(
        "the slot is in the counter of a stream",
        "stream.cuh",
        "p.offset[row_.row], p.stream)",
        "p.offset[row_.row], p.stream + row_.row)",
    ),
    _kernel("the slot is in the counter of a held row", "filtered.cuh", "row.p.stream)", "row.p.stream + row.row)"),
    Mutant(
        "sampling: ties go to the higher id",
        f"{_K}/order.cuh",
        (
            ("<< 32 | ~token;", "<< 32 | token;"),
            ("return ~static_cast<uint32_t>(ranked);", "return static_cast<uint32_t>(ranked);"),
        ),
        tests=f"{_HERE}/test_emulated.py -k proven",
    ),
    _kernel("the token at the boundary of p is lost", "held.cuh", "(lack + mass - 1) / max", "lack / max", "equal"),
    _kernel(
        "the mass after a token decides",
        "select.cuh",
        "target.of(before + own) >= target.need",
        "target.of(before + own) > target.need",
        "equal",
    ),
    _kernel(
        "the mass before a token is that with it",
        "select.cuh",
        "before = before + Amount{sum.count - own.count, sum.mass - own.mass};",
        "before = before + sum;",
    ),
    _kernel("streams share their noise", "noise.cuh", "c[3] = stream;", "c[3] = 0;", "random_streams"),
    _kernel("the upper word of the offset is lost", "noise.cuh", "c[2] = offset[1]", "c[2] = 0"),
    _kernel("the upper word of the seed is lost", "noise.cuh", "k1 = key[1];", "k1 = 0;"),
    _kernel("the bucket that bounds a survey is left out", "held.cuh", "if (bucket <= last)", "if (bucket < last)", "joint"),
    _kernel(
        "the mass of the k kept is that of all", "filtered.cuh", "mass = own.mass, surveyed", "surveyed", "order_of_filters"
    ),
    _kernel("nine rounds of Philox", "noise.cuh", "round < 10", "round < 9"),
    _kernel(
        "p refers to the k kept, whatever the order",
        "filtered.cuh",
        "if (!by_mass && !C::kJoint) mass",
        "if (!by_mass) mass",
        "joint",
    ),
    _kernel("min_p is a natural logarithm", "held.cuh", "-log2f(share)", "-logf(share)"),
    _kernel("a race forgets the temperature", "stream.cuh", "row_.heated(a[j])", "a[j]"),
    _kernel(
        "a carry of masses is lost",
        "select.cuh",
        "high += atomicAdd(&to.low[bucket], low) > ~low;",
        "atomicAdd(&to.low[bucket], low);",
    ),
    _kernel(
        "what is not held is read without its temperature",
        "held.cuh",
        "return logits.heated(a[0]);",
        "return a[0];",
        "number_of_ctas",
    ),
    _kernel(
        "the last CTA of a row is left out",
        "cluster_row.cuh",
        "rank < ctas_; ++rank) value",
        "rank + 1 < ctas_; ++rank) value",
        "number_of_ctas",
    ),
    _kernel(
        "buckets of the last CTA are left out",
        "select.cuh",
        "rank < cluster.ctas()",
        "rank < max(1, cluster.ctas() - 1)",
        "number_of_ctas",
    ),
    _kernel("a bit of the mask is that of another token", "row.cuh", ">> token % 32;", ">> token % 16;"),
    _kernel("repetition makes negative logits likelier", "row.cuh", "a[j] > 0.f ? __fdiv_rn", "a[j] < 0.f ? __fdiv_rn"),
    _kernel(
        "the last bias of a list is lost", "row.cuh", "i < by.num_biases; i +=", "i < by.num_biases - 1; i +=", "every_entry"
    ),
    _kernel(
        "-0 is below 0",
        "row.cuh",
        "return __fadd_rn(fminf(fmaxf(a, -kLargest), kLargest), 0.f);",
        "return fminf(fmaxf(a, -kLargest), kLargest);",
        "neighbouring",
    ),
    _kernel("noise is at most 3", "noise.cuh", "kMostNoise = 33.f", "kMostNoise = 3.f"),
    _kernel("words that win are skipped", "stream.cuh", "exp2_approx(32.f - need)", "exp2_approx(29.f - need)"),
    _kernel("the row past the valid ones is written", "stream.cuh", "row < count;", "row <= count;", "wrong_index"),
    _kernel("the most likely token is listed again and again", "filtered.cuh", "if (own < last) next", "if (own <= last) next"),
    _kernel("a rank counts the token itself", "filtered.cuh", "ranked(other, token) > own", "ranked(other, token) >= own"),
    _kernel("the last token of equal ones is lost", "select.cuh", "token_ <= token)", "token_ < token)", "equal"),
    _kernel("a k above max_top_k is kept", "filtered.cuh", "min(k, int64_t{p.max_top_k})", "k", "random_streams"),
    _host("p keeps the token that follows", f"{_R}/kept.py", "found = (before < cut", "found = (before <= cut"),
    _host("a k of 0 keeps nothing", f"{_R}/kept.py", "(top_k <= 0)", "(top_k < 0)"),
    _host(
        "presence is subtracted from every token of the prompt",
        f"{_R}/adjust.py",
        "torch.where(used, a - f",
        "torch.where(args.prompt_mask | used, a - f",
        "test_race.py",
    ),
    _host(
        "noise of neighbouring groups is the same",
        f"{_R}/philox.py",
        "torch.arange((vocab + 3) // 4,",
        "torch.arange((vocab + 3) // 4 * 0 + 1,",
        "test_reference.py",
    ),
    _host(
        "a token outside the kept set is right",
        f"{_H}/judged.py",
        "    if not may[place]:\n        return WRONG\n",
        "",
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
