"""Faults in shared code of kernels, in merge and in append."""

from tests.mutation.mutant import APPEND, DECODE, MERGE, PREFILL, C, gpu

SHARED_FAULTS = (
    gpu(
        "offsets of pages are cut to 32 bits",
        "kernels/paged/page_lookup.cuh",
        "page * pool.page_stride",
        "static_cast<int32_t>(page * pool.page_stride)",
        "",
        tests="tests/testing/test_structural_far.py --heavy -k HND-decode or decode-HND",
    ),
    gpu(
        "lse is in base 2",
        f"{C}/softmax.cuh",
        "fmaf(finite_max(row_max), scale, logf(row_sum))",
        "1.4426950408889634f * fmaf(finite_max(row_max), scale, logf(row_sum))",
        f"{DECODE} prefill-off-causal",
    ),
    gpu(
        "a merge has no weights",
        f"{C}/merge.cuh",
        "const float weight = state_weight(lse, weights.base);",
        "const float weight = 1.f;",
        f"{PREFILL} {MERGE}",
    ),
    gpu(
        "append: the last piece of a row is not copied",
        "kernels/kv_cache/append.cuh",
        "      if (i < share.heads * kPerHead)\n        pieces[j] =",
        "      if (i < share.heads * kPerHead - 1)\n        pieces[j] =",
        APPEND,
    ),
    gpu(
        "append: the second half of a rotation is not rotated",
        "kernels/kv_cache/unit.cuh",
        "fmaf(second, cosines[i], from_first)",
        "fmaf(second, cosines[i], 0.f * from_first)",
        "append-half-fp8-head append-interleaved-odd",
    ),
    gpu(
        "append: what is not rotated of a row is not stored",
        "kernels/kv_cache/unit.cuh",
        "static constexpr int kUnits = kTurned + kKept;",
        "static constexpr int kUnits = kTurned > 0 ? kTurned : kKept;",
        "append-interleaved-odd",
    ),
    gpu(
        "merge: rows of a warp share their weights",
        "kernels/cascade/merge_states.cuh",
        "const int lane = threadIdx.x % kLanes;\n  float most",
        "const int lane = threadIdx.x % 32;\n  float most",
        "merge-bf16",
    ),
)
