"""Faults in the reference, which everything else is compared with, and in what it promises."""

from tests.mutation.mutant import host

SOFTMAX, VARIATION = "backends/reference/attention/softmax.py", "backends/reference/attention/variation.py"
PROMISE, TABLE = "backends/reference/attention/promise.py", "backends/reference/page_table.py"
STORE, MASK, MERGE = "backends/reference/rotate_and_store.py", "backends/reference/mask.py", "backends/reference/cascade.py"
APPEND, DECLARED, MLA = "backends/reference/kv_cache.py", "backends/reference/declared.py", "backends/reference/mla.py"
ATTENTION = "tests/families/attention/test_reference.py"
BLOCKS = "tests/families/attention/test_row_blocks.py"
SINKS, FP8 = "tests/families/attention/test_sinks.py", "tests/families/attention/test_fp8_cache.py"
STORED = "tests/families/kv_cache/test_computed_append.py"
PACKED, MERGED = "tests/families/mask/test_reference.py", "tests/families/cascade/test_reference.py"
LATENT, FIELDS = "tests/families/mla/test_reference.py", "tests/core/test_fields.py"
APPENDED = "tests/families/kv_cache/test_reference.py"
FORMS, IDS = "tests/families/cascade/test_forms.py", "tests/core/test_sku.py"
PROMISED = "tests/families/attention/test_promise.py"

FAULTS = (
    host(
        "num_valid: a wrong count is clamped to all rows",
        "core/operands.py",
        "count if 0 <= count <= rows else 0",
        "min(max(0, count), rows)",
        "tests/families/test_harness.py -k wrong_count",
    ),
    host(
        "reference: a later block of rows has the mask of the first",
        VARIATION,
        "self.mask[place.rows]",
        "self.mask[: len(place.rows)]",
        BLOCKS,
    ),
    host(
        "reference: a later block of rows sees what the first does",
        SOFTMAX,
        "_visible(row[:, None] + offset,",
        "_visible(row[:, None] - start + offset,",
        BLOCKS,
    ),
    host(
        "reference: a later block of rows has the place of the first",
        SOFTMAX,
        "Place(row, q.shape[0], kv_len",
        "Place(row - start, q.shape[0], kv_len",
        BLOCKS,
    ),
    host(
        "reference: a later block of rows has the queries of the first",
        SOFTMAX,
        "grouped = q[start:stop]",
        "grouped = q[: stop - start]",
        BLOCKS,
    ),
    host(
        "reference: lse of a later block is not written",
        SOFTMAX,
        "            lse[start:stop] = log_sum",
        "            lse[: stop - start] = log_sum",
        BLOCKS,
    ),
    host(
        "reference: heads of a group are laid out by KV head",
        SOFTMAX,
        "scoring).repeat_interleave(group, dim=0)",
        "scoring).repeat(group, 1)",
        ATTENTION,
    ),
    host(
        "reference: the factor of K is left out",
        SOFTMAX,
        "_factor(scoring.k_scale, scoring.scale, q)",
        "_factor(None, scoring.scale, q)",
        FP8,
    ),
    host(
        "reference: the factor of V is left out", SOFTMAX, "return o * _factor(scoring.v_scale, 1.0, q)", "return o * 1.0", FP8
    ),
    host(
        "reference: the factor of Q is left out",
        SOFTMAX,
        " * _factor(scoring.q_scale, 1.0, q)",
        "",
        f"{BLOCKS} tests/families/attention/test_products.py",
    ),
    host("reference: a sink does not join the sum", SOFTMAX, "keepdim=True) + (sink - top).exp()", "keepdim=True)", SINKS),
    host(
        "reference: the sink of a row is that of another head",
        SOFTMAX,
        "return by_head.repeat(1, rows.shape[1] // by_head.shape[1])[..., None]",
        "return by_head.repeat_interleave(rows.shape[1] // by_head.shape[1], 1)[..., None]",
        SINKS,
    ),
    host(
        "reference: a large sink overflows",
        SOFTMAX,
        "top = torch.maximum(scores.amax(dim=-1, keepdim=True), sink)",
        "top = scores.amax(dim=-1, keepdim=True)",
        BLOCKS,
    ),
    host(
        "reference: a row without keys is NaN",
        SOFTMAX,
        "    top = torch.where(top == -math.inf, torch.zeros_like(top), top)\n    p = ",
        "    p = ",
        ATTENTION,
    ),
    host(
        "reference: f32 is computed in f32",
        SOFTMAX,
        "return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32",
        "return torch.float32",
        "tests/testing/test_numerics.py -k f64",
    ),
    host(
        "reference: the cap comes after the mask", SOFTMAX, "if scoring.soft_cap > 0:", "if scoring.soft_cap > 1e9:", ATTENTION
    ),
    host(
        "reference: the mask begins with the first byte of all",
        VARIATION,
        "own = packed[start : start + -(-count // 8)]",
        "own = packed[: -(-count // 8)]",
        "tests/families/attention/test_variants.py",
    ),
    host(
        "reference: parameters of rows are those of the first request",
        VARIATION,
        "args.row_params[:, rows]",
        "args.row_params[:, : rows.stop - rows.start]",
        "tests/families/attention/test_variants.py",
    ),
    host(
        "reference: a query is not transformed",
        VARIATION,
        "if self.variant is None or self.variant.query is None:",
        "if True:",
        "tests/families/attention/test_variants.py",
    ),
    host(
        "reference: starts of a mask are not checked",
        VARIATION,
        "    check_mask_starts(op, starts,",
        "    _ = (op, starts,",
        "tests/families/attention/test_variants.py",
    ),
    host(
        "reference: wrong indices are not refused",
        TABLE,
        "    if found:\n        raise error_of(tables, found)\n",
        "",
        "tests/validation/test_validation.py",
    ),
    host(
        "reference: an id that nothing sees is used",
        TABLE,
        "pages.where(host.sound_pages(tables, pages), 0)",
        "pages",
        "tests/validation/test_safe_pages.py tests/validation/test_unowned.py",
    ),
    host("reference: HND is read as NHD", TABLE, 'if cache.layout == "HND"', 'if cache.layout == "NHD"', ATTENTION),
    host("reference append: a stored row is not clamped", STORE, "x = x.clamp(-most, most)", "x = x + 0", STORED),
    host(
        "reference append: a factor multiplies",
        STORE,
        "x / scale.to(x.dtype)[:, None]",
        "x * scale.to(x.dtype)[:, None]",
        STORED,
    ),
    host(
        "reference append: positions begin at 0",
        STORE,
        "args.cos_sin_cache[position : position + k.shape[0]]",
        "args.cos_sin_cache[: k.shape[0]]",
        STORED,
    ),
    host(
        "reference append: rotation has the other sign",
        STORE,
        "first * cos - second * sin, second * cos + first * sin",
        "first * cos + second * sin, second * cos - first * sin",
        STORED,
    ),
    host("reference append: half is interleaved", STORE, 'if rope == "half":', 'if rope == "neither":', STORED),
    host(
        "reference append: f32 rows are rotated in f32",
        STORE,
        "torch.float64 if x.dtype == torch.float32 else torch.float32",
        "torch.float32",
        "tests/families/kv_cache/test_oracle.py",
    ),
    host(
        "reference append: K is not divided by its factor",
        STORE,
        "return _rounded(_unscaled(rotated, args.k_scale), dtype)",
        "return _rounded(rotated, dtype)",
        STORED,
    ),
    host(
        "reference append: V has the factor of K",
        STORE,
        "_unscaled(_wide(v), args.v_scale)",
        "_unscaled(_wide(v), args.k_scale)",
        STORED,
    ),
    host(
        "reference append: new rows past the angles are not refused",
        APPEND,
        "    descriptor.refuse_requests(args,",
        "    _ = (args,",
        STORED,
    ),
    host(
        "reference mask: bits lie in the other order",
        MASK,
        'if descriptor.bit_order == "little"',
        'if descriptor.bit_order == "big"',
        PACKED,
    ),
    host("reference mask: what is not 1 is 0", MASK, "!= 0).long()", "== 1).long()", PACKED),
    host("reference mask: bytes past the last segment stay", MASK, "    args.packed.zero_()\n", "", PACKED),
    host(
        "reference mask: starts are those of bits",
        MASK,
        "args.packed_indptr[request + 1] = at",
        "args.packed_indptr[request + 1] = starts[request + 1]",
        PACKED,
    ),
    host("reference merge: lse is the largest", MERGE, "to_lse.copy_(top + total.log())", "to_lse.copy_(top)", MERGED),
    host(
        "reference merge: sums are not normalised",
        MERGE,
        "to_o.copy_(o / torch.where(total == 0, torch.ones_like(total), total)[..., None])",
        "to_o.copy_(o)",
        MERGED,
    ),
    host(
        "reference mla: kpe is not read",
        MLA,
        "torch.cat([latent, args.kpe[at][:, None]], -1)",
        "torch.cat([latent, 0 * args.kpe[at][:, None]], -1)",
        LATENT,
    ),
    host(
        "reference mla: rows of a request see all keys",
        MLA,
        "causal=descriptor.causal and rows > 1",
        "causal=False",
        LATENT,
    ),
    host(
        "reference mla: rows are those of the request before",
        MLA,
        "slice(request * rows, (request + 1) * rows)",
        "slice(request * 1, request * 1 + rows)",
        LATENT,
    ),
    host(
        "promise: f32 in f64 is stated as f32",
        PROMISE,
        'id="attention-f64" if wide else',
        'id="attention-f32" if wide else',
        f"{PROMISED} tests/testing/test_numerics.py",
    ),
    host("promise: roundoff of f64 for 16 bits", PROMISE, "u = 2.0**-53 if wide else 2.0**-24", "u = 2.0**-53", PROMISED),
    host("promise: roundoff of f32 for f64", PROMISE, "u = 2.0**-53 if wide else 2.0**-24", "u = 2.0**-24", PROMISED),
    host(
        "promise: logits may be infinite",
        PROMISE,
        "conditions=(READS_INDICES, FINITE_LOGITS) if transforms else (READS_INDICES,)",
        "conditions=(READS_INDICES,)",
        PROMISED,
    ),
    host(
        "promise: a function of a variant is exact",
        PROMISE,
        'facts |= {"function": 4 * u} if transforms else {}',
        "facts |= {}",
        PROMISED,
    ),
    host(
        "promise: a sink is no fact of the SKU",
        PROMISE,
        'facts |= {"sinks": True} if descriptor.sinks else {}',
        "facts |= {}",
        f"{PROMISED} {FIELDS}",
    ),
    host(
        "promise: a factor is no fact of the SKU",
        PROMISE,
        'for name in ("kv_scale", "q_scale")}',
        'for name in ("kv_scale",)}',
        f"{PROMISED} {FIELDS}",
    ),
    host(
        "promise: an append that rounds is exact",
        APPEND,
        'ErrorModel(id="exact" if descriptor.copies else "append-f32")',
        'ErrorModel(id="exact")',
        STORED,
    ),
    host(
        "promise: rope is no fact of an append", APPEND, '("rope", descriptor.rope))', '("rope", "none"))', f"{FIELDS} {STORED}"
    ),
    host(
        "promise: the revision of a declared reference is 1",
        DECLARED,
        "revision=revision,",
        "revision=1,",
        PROMISED,
    ),
)
