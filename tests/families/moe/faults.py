"""Faults planted in kernels of mixtures of experts: sort keys and ties, the order of a sort, uninitialised rows."""

from tests.mutation.mutant import cpu

KERNELS = "tests/families/moe/test_moe_kernels.py"
BOUND = f"{KERNELS} -k keeps_its_guarantee"
TIES, STABLE = f"{KERNELS} -k equal_logits", f"{KERNELS} -k stable"


def kernel(name, file, old, new, tests=BOUND):
    return cpu(f"experts: {name}", f"kernels/moe/{file}", old, new, tests)


FAULTS = (
    kernel("NaN ranks first", "route.cuh", "if (x != x) return 1;", "if (x != x) return 0xffffffffu;", TIES),
    kernel(
        "equal keys rank by the higher id",
        "route.cuh",
        "| ~static_cast<uint32_t>(index); }",
        "| static_cast<uint32_t>(index); }",
        TIES,
    ),
    kernel("-0 is below 0", "route.cuh", "__float_as_uint(x + 0.f)", "__float_as_uint(x)", TIES),
    kernel("an expert may be chosen twice", "route.cuh", "taken |= 1u << winner / 32;", "taken |= 0;"),
    kernel(
        "the correction is in the weights",
        "route.cuh",
        "Row::lane() == slot) mine.expert = winner, mine.z = z;",
        "Row::lane() == slot) mine.expert = winner, mine.z = z + (C::kCorrection ? 1.f : 0.f);",
    ),
    kernel("a group counts its best alone", "route.cuh", "C::kTop2 && second != 0", "false"),
    kernel("experts of groups that are out are chosen", "route.cuh", "kept >> i & 1 ? rank[i] : 0;", "rank[i];"),
    kernel(
        "weights are not renormalised where they should be",
        "route.cuh",
        "weight = div_rounded(weight, total == 0.f",
        "(void)(total == 0.f",
    ),
    kernel("the scale is lost", "route.cuh", "mul_rounded(weight, p.scale);", "weight;"),
    kernel("rows past the count are routed", "route.cuh", "at >= counted || counted > p.rows", "false"),
    kernel(
        "a sort is not stable",
        "moe_sort.cuh",
        "begin + __popc(same & lower);",
        "begin + __popc(same & ~lower) - 1;",
        f"{KERNELS} -k order_of_rows",
    ),
    kernel(
        "a warp has the choices of the one before",
        "moe_sort.cuh",
        "memory.count[warp][expert] = sum, sum += own;",
        "memory.count[warp][expert] = sum - own, sum += own;",
    ),
    kernel("the last expert has no end", "moe_sort.cuh", "p.indptr[kExperts] = before;", "p.indptr[kExperts] = before - 1;"),
    kernel(
        "entries behind the last choice are stale",
        "moe_sort.cuh",
        "p.order[at] = p.x_rows[at] = 0;",
        "p.order[at] = 0;",
        STABLE,
    ),
    kernel(
        "choices of other experts have a place",
        "moe_sort.cuh",
        "p.places[choice] = expert < kExperts ? at : -1;",
        "p.places[choice] = at;",
        STABLE,
    ),
    kernel(
        "counters of 31 experts are not cleared",
        "moe_sort.cuh",
        "expert = threadIdx.x % 32; expert < kExperts; expert += 32",
        "expert = 31; expert < kExperts; expert += 32",
    ),
    kernel(
        "ids beyond the local experts are counted",
        "moe_sort.cuh",
        "local < kExperts ? local : kExperts;",
        "local % kExperts;",
        STABLE,
    ),
    kernel(
        "rows past the count are gathered",
        "moe_gather.cuh",
        "at >= count || count > p.choices",
        "at >= p.choices",
        f"{KERNELS} -k invalid_counts",
    ),
    kernel(
        "an entry out of range is read",
        "moe_gather.cuh",
        "if (choice < 0 || choice >= p.choices) return;",
        "",
        f"{KERNELS} -k invalid_counts",
    ),
    kernel("a row has the weight of its place", "moe_gather.cuh", "p.weights[choice]", "p.weights[at]"),
    kernel(
        "offsets of rows have 32 bits",
        "moe_gather.cuh",
        "choice / p.top_k * p.x_row;",
        "static_cast<int32_t>(choice / p.top_k * p.x_row);",
        f"{KERNELS} -k row_strides",
    ),
    kernel(
        "a slot without a row counts 0 times what lies there",
        "moe_combine.cuh",
        "if (at < 0 || at >= p.rows * kSlots) continue;",
        "if (at < 0) part[slot].load(static_cast<const Bits*>(p.y) + column, left);",
    ),
    kernel(
        "the last slot is lost",
        "moe_combine.cuh",
        "      const float weight",
        "      if (kSlots > 1 && slot == kSlots - 1) break;\n      const float weight",
    ),
    kernel("add is scaled", "moe_combine.cuh", "fmaf(p.scale, sum[i], made.at(i))", "p.scale * (sum[i] + made.at(i))"),
    kernel("a piece at an edge is stored whole", "row_piece.cuh", "return left >= kCount && reinterpret", "return reinterpret"),
)
