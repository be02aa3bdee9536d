"""Faults in what kernels share, in merge and in append."""

from tests.mutation.mutant import APPEND, DECODE, MERGE, PREFILL, C, gpu

SHARED_FAULTS = (
    gpu(
        "the page of a token is off by one at its end",
        f"{C}/page_lookup.cuh",
        "token >> page_shift : token / page_size]",
        "(token + 1) >> page_shift : (token + 1) / page_size]",
        DECODE,
    ),
    gpu(
        "the slot of a token loses its lowest bit",
        f"{C}/page_lookup.cuh",
        "token & (page_size - 1) : token % page_size",
        "token & (page_size - 2) : token % page_size",
        f"{DECODE} append-csr",
    ),
    gpu(
        "last_page_len is ignored",
        f"{C}/page_lookup.cuh",
        "(pages - 1) * table.page_size + table.lens[request]",
        "pages * table.page_size",
        f"{DECODE} append-csr",
    ),
    gpu(
        "kv heads are apart by the token stride",
        f"{C}/page_lookup.cuh",
        "head * pool.head_stride",
        "head * pool.token_stride",
        f"{DECODE} {PREFILL}",
    ),
    gpu(
        "offsets of pages are cut to 32 bits",
        f"{C}/page_lookup.cuh",
        "page * pool.page_stride",
        "static_cast<int32_t>(page * pool.page_stride)",
        "",
        tests="tests/test_structural_far.py --heavy -k HND-decode or decode-HND",
    ),
    gpu(
        "invisible keys are not filled with zero", f"{C}/cp_async.cuh", '"r"(valid ? 16 : 0)', '"r"(16)', f"{DECODE} {PREFILL}"
    ),
    gpu(
        "lse is in base 2",
        f"{C}/softmax.cuh",
        "fmaf(finite_max(row_max), scale, logf(row_sum))",
        "1.4426950408889634f * fmaf(finite_max(row_max), scale, logf(row_sum))",
        f"{DECODE} prefill-off-causal",
    ),
    gpu(
        "lse forgets the maximum",
        f"{C}/softmax.cuh",
        "fmaf(finite_max(row_max), scale, logf(row_sum))",
        "logf(row_sum)",
        f"{DECODE} prefill-off-causal",
    ),
    gpu(
        "a row that sees nothing divides by zero",
        f"{C}/softmax.cuh",
        "return sum == 0.f ? 0.f : 1.f / sum;",
        "return 1.f / sum;",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge skips the last state",
        f"{C}/merge.cuh",
        "for (int s = first; s < states.count; s += step)",
        "for (int s = first; s < states.count - 1; s += step)",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge has no weights",
        f"{C}/merge.cuh",
        "const float weight = state_weight(lse, weights.base);",
        "const float weight = 1.f;",
        f"{DECODE} {MERGE}",
    ),
    gpu(
        "a merge reads the o of empty states",
        f"{C}/merge.cuh",
        "    if (lse == minus_infinity()) continue;\n",
        "",
        f"{MERGE} prefill-fixed-odd-window-cap-block",
    ),
    gpu(
        "a negative scale turns only half of Q",
        f"{C}/q_transform.cuh",
        "pair ^ 0x80008000u",
        "pair ^ 0x00008000u",
        "",
        tests="tests/test_conformance.py -k unusual_scale",
    ),
    gpu(
        "append: one position too early",
        "kernels/kv_cache/place.cuh",
        " - (stop - row);",
        " - (stop - row) - 1;",
        APPEND,
    ),
    gpu("append: a request's first row goes to the one before", "kernels/kv_cache/place.cuh", "<= row;", "< row;", APPEND),
    gpu(
        "append: the last piece of a row is not copied",
        "kernels/kv_cache/append.cuh",
        "      if (i < share.heads * kPerHead)\n        pieces[j] =",
        "      if (i < share.heads * kPerHead - 1)\n        pieces[j] =",
        APPEND,
    ),
    gpu(
        "append: rows of more heads than a warp takes lose the rest",
        "kernels/kv_cache/append.cuh",
        "share.head = blockIdx.y * p.heads_each;",
        "share.head = 0;",
        "append-many-heads",
    ),
    gpu(
        "append: the last warp of a row takes as many heads as the others",
        "kernels/kv_cache/append.cuh",
        "min(p.heads_each, p.kv_heads - share.head)",
        "p.heads_each",
        "append-many-heads",
    ),
)
