"""Faults planted in rounds between GPUs and in the sum with a norm behind it."""

from tests.mutation.mutant import Mutant

_ROUND, _SUM = "kernels/ranks/round.cuh", "kernels/ranks/sum_fold.cuh"
_MERGE = "kernels/ranks/merge_across.cuh"
_TESTS = "tests/families/collective/test_sum_fold_kernel.py"
_MERGED = "tests/families/collective/test_merge_kernel.py"
_DRAW, _DRAWN = "kernels/sampling/draw_listed.cuh", "tests/families/collective/test_draw_kernel.py"
_TEAMS = "kernels/sampling/teams.cuh"
_LIST, _LISTED = "kernels/sampling/list_shard.cuh", "tests/families/collective/test_list_kernel.py"


# Halves of CTAs that differ meet only where a peer still reads as another CTA writes: the emulator has no such moment.
_RACE = "a race of two launches, which the emulator does not show"


def _planted(name, path, right, wrong, select, blind="", tests=_TESTS):
    return Mutant(f"ranks: {name}", path, ((right, wrong),), tests=f"{tests} -k {select}", blind=blind)


FAULTS = (
    _planted("an epoch is stored before the data", _ROUND, "      fence_system();\n", "", "bits_of_one_gpu and residual"),
    _planted(
        "terms are sent behind the epoch",
        _SUM,
        "    each_slot([&](int64_t slot) { push_terms(slot); });\n    return round.meet(facts());\n",
        "    const bool met = round.meet(facts());\n    each_slot([&](int64_t slot) { push_terms(slot); });\n    return met;\n",
        "bits_of_one_gpu and residual",
    ),
    _planted(
        "both rounds of a call use one half", _ROUND, "shared.epoch & 1)", "shared.epoch & 0)", "bits_of_one_gpu and residual"
    ),
    _planted(
        "CTAs without rows keep their epoch",
        _ROUND,
        "at = cta + thread * static_cast<int>(gridDim.x); at < kMostCtas;",
        "at = cta; at < 1;",
        "follow_each_other",
        _RACE,
    ),
    _planted(
        "a flag may be that of a line that was read",
        _ROUND,
        "static_cast<uint32_t>(epoch % 0xFFFFFFFFu) + 1",
        "static_cast<uint32_t>(epoch)",
        "long_ago",
        "",
        _MERGED,
    ),
    _planted(
        "terms are added from the last rank on",
        _SUM,
        "load(term[r].bits(k))",
        "load(term[S::kWorld - r].bits(k))",
        "bits_of_one_gpu and layer",
    ),
    _planted(
        "results are taken before they have come",
        _SUM,
        "    });\n    return round.meet(facts());\n",
        "    });\n    return true;\n",
        "bits_of_one_gpu and residual",
    ),
    _planted(
        "counts of rows are not compared",
        _SUM,
        "word << 32 | static_cast<uint32_t>(valid)",
        "word << 32",
        "named_and_outputs_say_so",
    ),
    _planted(
        "a wait ends at once",
        _ROUND,
        "    if (waited <= kGlance) return false;\n    look();\n",
        "    atomicOr(&shared.missing, ranks);\n    return true;\n",
        "bits_of_one_gpu and residual",
    ),
    _planted(
        "lines are added before they come",
        _SUM,
        "      round.receive_all(lines",
        "      if (false) round.receive_all(lines",
        "lines",
    ),
    _planted(
        "lines keep their flags", _ROUND, "    forget_flagged(from), forget_flagged(from + 1);\n", "", "long_ago", "", _MERGED
    ),
    _planted(
        "arrivals keep their flags",
        _ROUND,
        "    forget_flagged(here), forget_flagged(here + 1);\n",
        "",
        "long_ago",
        "",
        _MERGED,
    ),
    _planted("a rank with other lines is waited for", _ROUND, "    look();\n", "", "named and count and lines"),
    _planted(
        "a sink of many states has no weight",
        _MERGE,
        "states.count + 1}",
        "states.count}",
        "bits_of_one_gpu and sinks",
        "",
        _MERGED,
    ),
    _planted(
        "a sink stands behind the room for states",
        _MERGE,
        "s == states ? sink",
        "s == kStates ? sink",
        "bits_of_one_gpu and sinks",
        "",
        _MERGED,
    ),
    _planted(
        "states that are held lie by ranks",
        _MERGE,
        "held_o(state * p.round.world + source, unit)",
        "held_o(source * p.states + state, unit)",
        "bits_of_one_gpu and three and lines",
        "",
        _MERGED,
    ),
    _planted(
        "weights are added from the first state on",
        _MERGE,
        "half[s] = x[s] + x[s + kCount / 2];",
        "half[s] = x[2 * s] + x[2 * s + 1];",
        "bits_of_one_gpu and seven",
        "",
        _MERGED,
    ),
    _planted(
        "what a peer told beside lines is not compared",
        _ROUND,
        "if (whole(digest) != p.digest || whole(other) != facts) atomicOr(&shared.odd, 1u << thread);",
        "",
        "named and lines",
        "",
        _MERGED,
    ),
    _planted(
        "what was not heard beside lines is not waited for",
        _ROUND,
        "    while (listens) {\n",
        "    while (false) {\n",
        "without_rows",
    ),
    _planted(
        "sums of later rows are held where the first is",
        _SUM,
        "(slot / turn * M::kRows + slot % M::kRows) * p.pitch",
        "slot % M::kRows * p.pitch",
        "wait_for_the_fold",
    ),
    _planted(
        "the fold reads its first sums again",
        _SUM,
        "later - later / gridDim.x) * p.pitch;",
        "later) * p.pitch;",
        "wait_for_the_fold",
    ),
    _planted(
        "a rank adds the sinks of the first rank's heads",
        _MERGE,
        "p.sinks[index(p.round.rank, 0, unit) % p.heads]",
        "p.sinks[unit % p.kept]",
        "bits_of_one_gpu and sinks",
        "",
        _MERGED,
    ),
    _planted(
        "states of one rank follow each other",
        _MERGE,
        "const int source = s % p.round.world, state = s / p.round.world, own = p.round.rank;\n"
        "    if (source == own) return p.o_part",
        "const int source = s / p.states, state = s % p.states, own = p.round.rank;\n    if (source == own) return p.o_part",
        "bits_of_one_gpu and three and places",
        "",
        _MERGED,
    ),
    _planted(
        "a peer gets the heads of this rank",
        _MERGE,
        "to * p.kept",
        "p.round.rank * p.kept",
        "bits_of_one_gpu",
        "",
        _MERGED,
    ),
    _planted(
        "a merge that failed leaves its outputs",
        _MERGE,
        "if (!met) return fill();",
        "if (!met) return;",
        "outputs_say_so",
        "",
        _MERGED,
    ),
    _planted("a failure is forgotten", _ROUND, "if (!met) *const_cast", "if (false) *const_cast", "named_and_outputs_say_so"),
    _planted(
        "a failed call leaves its outputs",
        _SUM,
        "met ? fold_all(0) : fill();",
        "if (met) fold_all(0);",
        "named_and_outputs_say_so",
    ),
    _planted(
        "terms of the first row are those of every row",
        _SUM,
        "return slot == int64_t{blockIdx.x} * M::kRows;",
        "return true;",
        "bits_of_one_gpu and residual and lines",
    ),
    _planted(
        "the first piece is sent for every state",
        _MERGE,
        "hop == 1 && state == 0 &&",
        "hop == 1 &&",
        "bits_of_one_gpu and three and lines",
        "",
        _MERGED,
    ),
    _planted(
        "columns of all ranks begin at 0",
        _DRAW,
        "static_cast<uint32_t>(rank * p_.shard + column)",
        "static_cast<uint32_t>(column)",
        "of_one_rank and share",
        "",
        _DRAWN,
    ),
    _planted(
        "the last token of a list is left out",
        _DRAW,
        "shared_.listed[rank] = at + 1;",
        "shared_.listed[rank] = at;",
        "of_one_rank and count",
        "",
        _DRAWN,
    ),
    _planted(
        "a row keeps the whole list",
        _DRAW,
        "static_cast<int>(min(filters.limit, uint64_t{kShortK}))",
        "p_.listed",
        "of_one_rank and share",
        "",
        _DRAWN,
    ),
    _planted(
        "rows past the count are drawn",
        _DRAW,
        "if (is_valid_row(p.sample, blockIdx.x)) DrawListed",
        "DrawListed",
        "past_num_valid",
        "",
        _DRAWN,
    ),
    _planted("rows of later launches count from the first", _SUM, "counted - p.before", "counted", "not_valid"),
    _planted(
        "entries behind the last token keep what was there",
        _LIST,
        "i < count ? list[i] : 0",
        "list[min(i, max(count - 1, 0))]",
        "no_numbers",
        "",
        _LISTED,
    ),
    _planted(
        "a slow list begins after its first token",
        _LIST,
        "uint64_t last = ~uint64_t{0};",
        "uint64_t last = cluster.reduce(0, Larger());",
        "too_many_equal",
        "",
        _LISTED,
    ),
    _planted(
        "a slow list is not heated",
        _LIST,
        "ranked(row.heated(a[j]), token + j) : 0;",
        "ranked(a[j], token + j) : 0;",
        "any_temperature_of_equal",
        "",
        _LISTED,
    ),
    _planted(
        "a slow list repeats the last token",
        _LIST,
        "if (own < last)",
        "if (own <= last)",
        "too_many_equal",
        "",
        _LISTED,
    ),
    _planted(
        "rows past the count are listed",
        _TEAMS,
        "if (rows.own() < p.rows && is_valid_row(p, rows.own())) find",
        "if (rows.own() < p.rows) find",
        "past_num_valid",
        "",
        _LISTED,
    ),
)
