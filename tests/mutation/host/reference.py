"""Faults in the reference, with which everything else is compared, and in its guarantee."""

from tests.mutation.mutant import host

SOFTMAX, VARIATION = "backends/reference/attention/softmax.py", "backends/reference/attention/variation.py"
STORE, MASK = "backends/reference/rotate_and_store.py", "backends/reference/mask.py"
APPEND, MLA = "backends/reference/kv_cache.py", "backends/reference/mla.py"
ATTENTION = "tests/families/attention/test_reference.py"
BLOCKS = "tests/families/attention/test_row_blocks.py"
SINKS = "tests/families/attention/test_sinks.py"
STORED = "tests/families/kv_cache/test_computed_append.py"
PACKED = "tests/families/mask/test_reference.py"
LATENT, FIELDS = "tests/families/mla/test_reference.py", "tests/core/test_fields.py"

FAULTS = (
    host(
        "num_valid: a wrong count is clamped to all rows",
        "core/operands.py",
        "count if 0 <= count <= rows else 0",
        "min(max(0, count), rows)",
        "tests/families/test_harness.py -k count_is_out_of_range",
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
        "reference: the sink of a row is that of another head",
        SOFTMAX,
        "return by_head.repeat(1, rows.shape[1] // by_head.shape[1])[..., None]",
        "return by_head.repeat_interleave(rows.shape[1] // by_head.shape[1], 1)[..., None]",
        SINKS,
    ),
    host(
        "reference: parameters of rows are those of the first request",
        VARIATION,
        "args.row_params[:, rows]",
        "args.row_params[:, : rows.stop - rows.start]",
        "tests/families/attention/test_variants.py",
    ),
    host(
        "reference: starts of a mask are not checked",
        VARIATION,
        "    check_mask_starts(op, starts,",
        "    _ = (op, starts,",
        "tests/families/attention/test_variants.py",
    ),
    host("reference append: a stored row is not clamped", STORE, "x = x.clamp(-most, most)", "x = x + 0", STORED),
    host(
        "reference append: new rows past the angles are not refused",
        APPEND,
        "    descriptor.refuse_requests(args,",
        "    _ = (args,",
        STORED,
    ),
    host("reference mask: what is not 1 is 0", MASK, "!= 0).long()", "== 1).long()", PACKED),
    host(
        "reference mask: starts are those of bits",
        MASK,
        "args.packed_indptr[request + 1] = at",
        "args.packed_indptr[request + 1] = starts[request + 1]",
        PACKED,
    ),
    host(
        "reference mla: kpe is not read",
        MLA,
        "torch.cat([latent, args.kpe[at][:, None]], -1)",
        "torch.cat([latent, 0 * args.kpe[at][:, None]], -1)",
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
        "promise: rope is no fact of an append", APPEND, '("rope", descriptor.rope))', '("rope", "none"))', f"{FIELDS} {STORED}"
    ),
)
