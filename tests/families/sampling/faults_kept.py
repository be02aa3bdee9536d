"""Faults planted in the sampling of rows that p and min_p filter alone."""

from tests.mutation.mutant import Mutant

_K, _TESTS = "kernels/sampling", "tests/families/sampling/test_kept_stream.py"


def _kept(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_TESTS} -k {words}")


FAULTS = (
    _kept(
        "ties of a winner precede it whatever their ids",
        "rough.cuh",
        "else if (token < token_of(winner_.place)) s",
        "else s",
        "share",
    ),
    _kept(
        "sums that cannot tell keep",
        "rough.cuh",
        "? Verdict::kLost : Verdict::kUnsure;",
        "? Verdict::kLost : Verdict::kKept;",
        "share",
    ),
    _kept(
        "numbers beyond f32 in octaves are usual", "rough.cuh", "usual = fabsf(top) < 4096.f &&", "usual = true ||", "extreme"
    ),
    _kept(
        "a winner is kept whatever min_p",
        "kept_stream.cuh",
        "likelihood().distance(a) <= shared_.winner.most;",
        "true;",
        "rules_out",
    ),
    _kept("masses are those without a temperature", "kept_stream.cuh", "= row.heated(a[j]);", "= a[j];", "extreme"),
    _kept("a floor has no min_p", "stream.cuh", "floor_ = top - reach -", "floor_ = top -", "floor"),
    _kept(
        "the most likely token is that of the last round",
        "stream.cuh",
        "most_ = fmaxf(most_, most[i]);",
        "most_ = most[i];",
        "proven",
    ),
    _kept(
        "sums of warps are their largest",
        "joint.cuh",
        "const uint64_t all = warp == 0 ? ClusterRow::join(own, Larger()) : ClusterRow::join(own, op);",
        "const uint64_t all = ClusterRow::join(own, Larger());",
        "proven",
    ),
    _kept("each step is kept", "ladder.cuh", "shared_.mass[min(own + 1, kSteps - 1)] < least", "true", "share"),
    _kept("a step has the tokens of one CTA", "ladder.cuh", "count += cluster.word_of", "count = cluster.word_of", "rejected"),
    _kept(
        "keys of less likely tokens hide a more likely one",
        "ladder.cuh",
        "int i = step / kFlight + 1;",
        "int i = 0;",
        "rejected",
    ),
    Mutant(
        "sampling: rows that filters cut are drawn alone",
        f"{_K}/teams.cuh",
        (("!filters.cuts() && filters.least == 0.f", "true"),),
        tests="tests/families/sampling/test_short_k.py -k beside_others",
    ),
    Mutant(
        "sampling: a row that is drawn alone has no temperature",
        f"{_K}/teams.cuh",
        (("a[j] = row.heated(a[j]);", "a[j] = a[j];"),),
        tests="tests/families/sampling/test_short_k.py -k beside_others",
    ),
)
