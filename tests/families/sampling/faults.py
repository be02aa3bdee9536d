"""Faults planted in sampling: its kernels, its reference, and what holds both to the contract."""

from tests.mutation.mutant import Mutant

_HERE = "tests/families/sampling"
_K, _R, _H = "kernels/sampling", "opfacade/backends/reference/sampling", "opfacade/testing/families/sampling"


def _kernel(name, file, old, new, words="proven"):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_emulated.py -k {words}")


def _wide(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_wide_sets.py -k {words}")


def _short(name, file, old, new, words):
    return Mutant(f"sampling: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_HERE}/test_short_k.py -k {words}")


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
    _wide("the token at the boundary of p is lost", "narrowing.cuh", "(lack + mass - 1) / max", "lack / max", "misleads"),
    _wide("a sample is believed", "held.cuh", "found.bucket >= first;", "true;", "misleads"),
    _wide("the mass before is moved", "held.cuh", "wanted.first - 1, before", "wanted.first, before", "exact"),
    _wide(
        "a list that overflows is taken",
        "candidate_list.cuh",
        "__all_sync(0xffffffffu, count <= own_room)",
        "true",
        "overflows",
    ),
    _kernel("a list overwrites the one before", "candidate_list.cuh", "all[begin + i] =", "all[i] =", "number_of_ctas"),
    _kernel("the bucket that bounds a list is left out", "held.cuh", "coarse(a) <= bound_;", "coarse(a) < bound_;", "joint"),
    _wide("the mass after a listed one decides", "candidate_list.cuh", "before + own >= need", "before + own > need", "equal"),
    _wide("masses of other warps are lost", "candidate_list.cuh", "before_ += warp_[i];", "before_ += 0;", "equal"),
    _wide(
        "the mass after a token decides",
        "select.cuh",
        "target.of(before + own) >= target.need",
        "target.of(before + own) > target.need",
        "misleads",
    ),
    _wide(
        "the mass before a token is that with it",
        "select.cuh",
        "before = before + Amount{sum.count - own.count, sum.mass - own.mass};",
        "before = before + sum;",
        "exact",
    ),
    _kernel("streams share their noise", "noise.cuh", "second = stream ^ key[1];", "second = key[1];", "random_streams"),
    _kernel(
        "the upper word of the offset is lost",
        "noise.cuh",
        "static_cast<uint32_t>(static_cast<uint64_t>(position) >> 32)",
        "0u",
    ),
    _kernel(
        "the upper word of the seed is lost", "noise.cuh", "static_cast<uint32_t>(static_cast<uint64_t>(seed) >> 32)", "0u"
    ),
    _wide("the mass of the k kept is that of all", "kept.cuh", "? own.mass :", "? held.total_mass() :", "exact"),
    _wide("the mass of a list is that of all", "kept.cuh", "masses.total()));", "held.total_mass()));", "exact"),
    _kernel("nine rounds of Philox", "noise.cuh", "round < 10", "round < 9"),
    _kernel(
        "p refers to the k kept, whatever the order",
        "kept.cuh",
        "by_mass && (C::kJoint || !by_count)",
        "by_mass && !by_count",
        "order_of_filters",
    ),
    _kernel("min_p is a natural logarithm", "held.cuh", "-log2f(share)", "-logf(share)"),
    _host(
        "sums of masses may overflow",
        "opfacade/plans/_sampling/specs.py",
        "if vocab > _MOST_MASSES:",
        "if False:",
        "test_reference.py -k masses_holds",
    ),
    _host(
        "rows may draw from no logits",
        "opfacade/plans/sampling.py",
        "if self.num_logits == 0 and self.total_num_rows:",
        "if False:",
        "test_reference.py -k without_any_row",
    ),
    Mutant(
        "sampling: a min_p of NaN is 1",
        f"{_K}/kept.cuh",
        (("p.min_p[row] > 0.f ? fminf(p.min_p[row], 1.f) : 0.f;", "fminf(p.min_p[row], 1.f);"),),
        tests=f"{_HERE}/test_probabilities.py -k no_number",
    ),
    _kernel("a race forgets the temperature", "stream.cuh", "row_.heated(a)", "a"),
    _wide(
        "a carry of masses is lost",
        "select.cuh",
        "high += atomicAdd(&to.low[bucket], low) > ~low;",
        "atomicAdd(&to.low[bucket], low);",
        "exact",
    ),
    _kernel(
        "what is not held is read without its temperature",
        "held.cuh",
        "return logits.heated(one.a[0]);",
        "return one.a[0];",
        "number_of_ctas",
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
    _kernel("a bit of the mask is that of another token", "row.cuh", ">> token % 32 :", ">> token % 16 :"),
    _kernel("repetition makes negative logits likelier", "row.cuh", "a = a > 0.f ? __fdiv_rn", "a = a < 0.f ? __fdiv_rn"),
    _kernel(
        "the last bias of a list is lost", "row.cuh", "i < by.num_biases; i +=", "i < by.num_biases - 1; i +=", "every_entry"
    ),
    Mutant(
        "sampling: a group reads the flag of another one",
        f"{_K}/row.cuh",
        ((">> token / 4 % 8 & 1", ">> token / 4 % 4 & 1"),),
        tests=f"{_HERE}/test_adjust.py -k long_list",
    ),
    _kernel(
        "-0 is below 0",
        "row.cuh",
        "return __fadd_rn(fminf(fmaxf(a, -kLargest), kLargest), 0.f);",
        "return fminf(fmaxf(a, -kLargest), kLargest);",
        "neighbouring",
    ),
    _kernel("noise is at most 3", "noise.cuh", "kMostNoise = 33.f", "kMostNoise = 3.f"),
    _kernel("words that win are skipped", "noise.cuh", "exp2_approx(32.f - need_)", "exp2_approx(29.f - need_)"),
    _kernel("the row past the valid ones is written", "stream.cuh", "row < count;", "row <= count;", "wrong_index"),
    _kernel("the most likely token is listed again and again", "filtered.cuh", "if (own < last) next", "if (own <= last) next"),
    _kernel("a rank counts the token itself", "filtered.cuh", "ranked(other, token) > own", "ranked(other, token) >= own"),
    _kernel("the last token of equal ones is lost", "narrowing.cuh", "token_ <= token)", "token_ < token)", "equal"),
    _kernel("a k above max_top_k is kept", "kept.cuh", "min(k, int64_t{p.max_top_k})", "k", "random_streams"),
    _wide(
        "a winner is taken though it is not kept",
        "filtered.cuh",
        "if (is_kept<C>(held, place, a)) return",
        "return",
        "race_is_won",
    ),
    _wide("a winner counts before itself", "filtered.cuh", "token) > place) before", "token) >= place) before", "race_is_won"),
    _wide(
        "a race forgets min_p", "filtered.cuh", "if (!(held.distance(a) <= filters.most())) return false;", "", "race_is_won"
    ),
    _wide("a loser takes part again", "filtered.cuh", "token_of(place + 1)};", "token_of(place - 1)};", "race_is_won"),
    Mutant(
        "sampling: a group finds the last bias of its chain alone",
        f"{_K}/row.cuh",
        (("i != kEnd; i = next[i])", "i != kEnd; i = kEnd)"),),
        tests=f"{_HERE}/test_adjust.py -k long_list",
    ),
    _short(
        "tokens that tie when divided are bounded",
        "shortlist.cuh",
        "x - fmaf(fabsf(x), 0x1p-20f, heat * 0x1p-148f)",
        "x",
        "ties",
    ),
    _short("tokens that tie at the largest number are bounded", "shortlist.cuh", "fminf(least, edge);", "least;", "ties"),
    _short("a list that is crowded is drawn from", "shortlist.cuh", "crowded ? kCrowded :", "false ? kCrowded :", "team"),
    _short("lists of a team are not merged", "shortlist.cuh", "place += precede(others, entry, k);", "place += 0;", "team"),
    _short(
        "one row of a cluster is held",
        "teams.cuh",
        "left = now & ~(((1u << rows.team()) - 1) << row * rows.team());",
        "left = 0;",
        "team",
    ),
    _short(
        "the last round begins anew",
        "teams.cuh",
        "return (whole * static_cast<uint32_t>(p.ctas) >> log2_of(p.team)) +",
        "return",
        "team",
    ),
    _short(
        "lists of a team are sent to one place", "shortlist.cuh", "list(rank - first_) + before", "list(0) + before", "team"
    ),
    _short(
        "a crowded list is told of in its own CTA alone",
        "shortlist.cuh",
        "cluster.store(threadIdx.x, &shared_.listed[rank], listed);",
        "cluster.store(rank, &shared_.listed[rank], listed);",
        "team",
    ),
    _short(
        "tokens of a noted group are the first one",
        "shortlist.cuh",
        "settled(group.a[j]), token + j);",
        "settled(group.a[j]), token);",
        "proven",
    ),
    _short(
        "a group that is not held is read without its temperature",
        "held.cuh",
        "found.e[j] = logits.heated(four.a[j]);",
        "found.e[j] = four.a[j];",
        "not_held",
    ),
    _short(
        "whole rounds have the teams of the last one",
        "teams.cuh",
        "? p.team : p.last_team;",
        "? p.last_team : p.last_team;",
        "team",
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
        tests="tests/jit/test_clusters.py",
    ),
    _stream("the other group of two is passed over", "stream.cuh", "? 0 : 2u << i;", "? 0 : 0u;", "late"),
    _stream(
        "groups are fetched again",
        "stream.cuh",
        "if (base_ < due) fetch();",
        "if (base_ < due) base_ -= kChunk, fetch(), base_ += kChunk;",
        "late",
    ),
    _stream("the token of a bias is not looked at", "stream.cuh", "token >= first() && token < end_", "false", "raises"),
    _stream("a penalty that raises is taken for one that lowers", "row.cuh", "&& presence >= 0.f;", ";", "raise"),
    _stream(
        "a masked token is lost that a penalty makes a candidate",
        "row.cuh",
        "kMaskLast = C::kBitmask && !C::kPenalties;",
        "kMaskLast = C::kBitmask;",
        "negative_repetition",
    ),
    _stream(
        "biases after the first ones are passed over",
        "stream.cuh",
        "num_biases; at += kSampleThreads) {",
        "num_biases; at += 1 << 20) {",
        "raises",
    ),
    _stream(
        "groups for which a list has no room are lost",
        "stream.cuh",
        "return __all_sync(0xffffffffu, count <= kCloseRoom);",
        "return true;",
        "without_room",
    ),
    _stream("a row that is crowded goes on", "stream.cuh", "base_ = first(), slot_ |=", "slot_ |=", "without_room"),
    Mutant(
        "sampling: clusters of four are as many as fit without gaps",
        "opfacade/backends/cuda/sampling/split.py",
        (("(places if ctas == 2 else places * 15 // 16)", "places"),),
        tests=f"{_HERE}/test_stream.py -k at_once",
    ),
    _stream("a token of each group is looked at", "stream.cuh", "shared_.close[i / 4] + i % 4", "shared_.close[i / 4]", "late"),
    _kernel(
        "the winner of the last CTA is lost",
        "stream.cuh",
        "lane < p.ctas ? shared",
        "lane < p.ctas - 1 ? shared",
        "number_of_ctas",
    ),
    _stream(
        "winners are read before they are sent",
        "stream.cuh",
        "  cluster_sync();\n  const int lane",
        "  const int lane",
        "proven",
    ),
    _large(
        "a bound is that of the raw logit",
        "stream.cuh",
        "return fmaxf(bound, -kLargest) * scale_;",
        "return bound * scale_;",
        "below_the_range",
    ),
    _large("a product that is no number is lost", "noise.cuh", "(most < kLargest ?", "(!(most >= kLargest) ?", "no_number"),
    _stream("a bound of a cap has no margin", "row.cuh", "cap, cap * 0x1p-10f);", "cap, 0.f);", "cap_bounds"),
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
