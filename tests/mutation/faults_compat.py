"""Faults in the calls of other libraries: what their arguments mean, what is refused, what is kept between calls."""

from tests.mutation.mutant import cpu

A = "opfacade/compat"
FLASH, KVCACHE = "tests/compat/test_flash_attn.py", "tests/compat/test_flash_attn_kvcache.py"
DECODE, PREFILL = "tests/compat/test_flashinfer_decode.py", "tests/compat/test_flashinfer_prefill.py"
MORE, SHARED = "tests/compat/test_flashinfer_more.py", "tests/compat/test_shared.py"

COMPAT_FAULTS = (
    cpu(
        "flash-attn: slopes of causal rows have the other sign",
        f"{A}/scores.py",
        'if bias == "causal":\n        return logits + slope',
        'if bias == "causal":\n        return logits - slope',
        FLASH,
    ),
    cpu(
        "flash-attn: the output of an fp8 q is fp8",
        f"{A}/attending.py",
        "(torch.bfloat16 if q.dtype in FP8 else q.dtype)",
        "q.dtype",
        f"{FLASH} -k fp8_query",
    ),
    cpu(
        "flash-attn: the soft cap stands behind the bias",
        f"{A}/flash_attn/meaning.py",
        "        capped_first=True,\n",
        "",
        FLASH,
    ),
    cpu(
        "flash-attn: a window on the right hides one key more",
        f"{A}/scores.py",
        "kv_pos <= q_pos + scores.window_right",
        "kv_pos < q_pos + scores.window_right",
        FLASH,
    ),
    cpu(
        "flash-attn: requests that lie apart in memory are taken for rows one after the other",
        f"{A}/flash_attn/dense.py",
        "x.stride(0) == x.shape[1] * x.stride(1)",
        "x.stride(0) >= 0",
        f"{FLASH} -k heads_before_rows",
    ),
    cpu(
        "flash-attn: the cache is written before the attention is checked",
        f"{A}/flash_attn/kvcache.py",
        "    for call in (*calls, *attentions):\n        call.check()\n",
        "",
        KVCACHE,
    ),
    cpu(
        "flash-attn: angles that were changed in place are the old ones",
        f"{A}/flash_attn/rotary.py",
        " and known[2] == versions",
        "",
        KVCACHE,
    ),
    cpu(
        "flash-attn: every row of q has the angle of the first, also with causal",
        f"{A}/flash_attn/kvcache.py",
        "moves = meaning.scores.causal or tuple(window_size) != (-1, -1)",
        "moves = tuple(window_size) != (-1, -1)",
        KVCACHE,
    ),
    cpu(
        "flash-attn: padding on the left shows its last key",
        f"{A}/scores.py",
        'kv_pos >= per_row("first_key")',
        'kv_pos + 1 >= per_row("first_key")',
        KVCACHE,
    ),
    cpu(
        "flash-attn: a gradient is computed with, not refused",
        f"{A}/refusals.py",
        "if tensor is not None and tensor.requires_grad:",
        "if False:",
        f"{FLASH} {KVCACHE} -k gradient or refuses",
    ),
    cpu(
        "FlashInfer: lse is natural",
        f"{A}/flashinfer/outcome.py",
        "            lse.mul_(LOG2E)\n",
        "            pass\n",
        PREFILL,
    ),
    cpu(
        "FlashInfer: a mask stands besides the causal one",
        f"{A}/flashinfer/paged.py",
        "scores = scores._replace(causal=False)",
        "scores = scores._replace()",
        PREFILL,
    ),
    cpu(
        "FlashInfer: an index tensor that is longer than the batch is taken whole",
        f"{A}/flashinfer/paged.py",
        "indptr[: batch + 1]",
        "indptr",
        DECODE,
    ),
    cpu(
        "FlashInfer: a graph's buffer is filled, and the caller's tensor read",
        f"{A}/flashinfer/wrapper.py",
        "        return buffer\n\n    def _fixed_batch",
        "        return tensor\n\n    def _fixed_batch",
        f"{DECODE} {PREFILL}",
    ),
    cpu(
        "FlashInfer: the factor of a KV head is taken for that of a query head in turn",
        f"{A}/flashinfer/factors.py",
        "scale.repeat_interleave(shape.heads // shape.kv_heads, output_size=shape.heads)",
        "scale.repeat(shape.heads // shape.kv_heads)",
        f"{DECODE} {PREFILL}",
    ),
    cpu(
        "FlashInfer: int64 index tensors are narrowed",
        f"{A}/flashinfer/wrapper.py",
        "if tensor.dtype != torch.int32:",
        "if False:",
        f"{DECODE} {PREFILL}",
    ),
    cpu(
        "FlashInfer: a new row goes to the page of the next token",
        f"{A}/flashinfer/page.py",
        "+ position // page_size",
        "+ (position + 1) // page_size",
        MORE,
    ),
    cpu(
        "FlashInfer: rows of nobody at the end are written",
        f"{A}/flashinfer/page.py",
        "(request >= 0).cumsum",
        "(request >= -1).cumsum",
        MORE,
    ),
    cpu(
        "FlashInfer: a masked row of a merge loses bits",
        f"{A}/flashinfer/merging.py",
        "own if mask is None else torch.where(mask.bool()[:, None], own, s.float())",
        "own",
        MORE,
    ),
    cpu(
        "FlashInfer: rows of a latent request all see its last token",
        f"{A}/flashinfer/rows_apart.py",
        "if causal else lens[own]",
        "if False else lens[own]",
        MORE,
    ),
    cpu(
        "adapters: facts that differ in a scale share a descriptor",
        f"{A}/attending.py",
        '        ("sm_scale", scale),\n',
        '        ("sm_scale", None),\n',
        FLASH,
    ),
    cpu(
        "adapters: every call builds its descriptor",
        f"{A}/selecting.py",
        "descriptor = _descriptors.get(key)",
        "descriptor = None",
        SHARED,
    ),
    cpu(
        "adapters: a bound is rounded down",
        f"{A}/selecting.py",
        "-(-bound >> shift) << shift",
        "(bound >> shift) << shift",
        SHARED,
    ),
    cpu(
        "adapters: a constant of a captured graph is kept for others",
        f"{A}/constants.py",
        "make(device, *key) if is_capturing(device) else _kept(make, device, *key)",
        "_kept(make, device, *key)",
        SHARED,
    ),
)
