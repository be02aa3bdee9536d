"""Faults in the calls of other libraries: meaning of arguments, refusals, and state between calls."""

from tests.mutation.mutant import cpu

A = "opfacade/compat"
FLASH, KVCACHE = "tests/compat/test_flash_attn.py", "tests/compat/test_flash_attn_kvcache.py"
SAMPLING = "tests/compat/test_flashinfer_sampling.py"
ROWS, ROPE = "tests/compat/test_flashinfer_rows.py", "tests/compat/test_flashinfer_rope.py"

COMPAT_FAULTS = (
    cpu(
        "flash-attn: a tensor of windows has the left one twice",
        f"{A}/flash_attn/meaning.py",
        "window = tuple(window)",
        "window = (window[0], window[0])",
        f"{KVCACHE} -k each_form",
    ),
    cpu(
        "flash-attn: requests that lie apart in memory are taken for rows one after the other",
        f"{A}/flash_attn/dense.py",
        "x.stride(0) == x.shape[1] * x.stride(1)",
        "x.stride(0) >= 0",
        f"{FLASH} -k heads_before_rows",
    ),
    cpu(
        "FlashInfer: a wrong index takes the controls of no row",
        f"{A}/flashinfer/_sampling/distributions.py",
        "at = at.masked_fill((at < 0) | (at >= logits.shape[0]), 0)",
        "at = at + 0",
        SAMPLING,
    ),
    cpu(
        "FlashInfer: filters see logarithms",
        f"{A}/flashinfer/sampling.py",
        "if controls else x.float().log()\n    return drawn(op, kept, how, {})",
        "if False else x.float().log()\n    return drawn(op, kept, how, controls, order)",
        SAMPLING,
    ),
    cpu(
        "FlashInfer: the order of filters is always top_k_first",
        f"{A}/flashinfer/_sampling/distributions.py",
        'facts = (form, *x.shape, name_of(op, "x", x.dtype), order, tuple(given))',
        'facts = (form, *x.shape, name_of(op, "x", x.dtype), "top_k_first", tuple(given))',
        SAMPLING,
    ),
    cpu(
        "FlashInfer: controls belong to outputs",
        f"{A}/flashinfer/_sampling/distributions.py",
        "value[at] for name",
        "value[at * 0] for name",
        SAMPLING,
    ),
    cpu(
        "FlashInfer: a row without candidates is token -1",
        f"{A}/flashinfer/_sampling/distributions.py",
        "token = token.clamp_(min=0)",
        "token = token + 0",
        SAMPLING,
    ),
    cpu(
        "FlashInfer: drafts that are counted alone share a coin",
        f"{A}/flashinfer/_sampling/speculative.py",
        "noise[1][:, None] + torch.arange(n, device=drafts.device)",
        "noise[1][:, None] + 0 * torch.arange(n, device=drafts.device)",
        SAMPLING,
    ),
    cpu(
        "FlashInfer: heads with a stride of their own are taken for rows",
        f"{A}/flashinfer/_norm_plans.py",
        "x.stride(0) == x.shape[1] * x.stride(1)",
        "x.stride(0) >= 0",
        ROWS,
    ),
    cpu(
        "FlashInfer: the norm is of the rounded sum",
        f"{A}/flashinfer/_norm_plans.py",
        "from opfacade.plans.norm import flashinfer as rounded_once",
        "from opfacade.plans.norm import huggingface as rounded_once",
        f"{ROWS} -k sum_before_it_is_rounded",
    ),
    cpu(
        "FlashInfer: a quantised layer norm is rounded once",
        f"{A}/flashinfer/norm.py",
        "    out = torch.empty_like(x)\n",
        "    x = x.float()\n    out = torch.empty_like(x)\n",
        ROWS,
    ),
    cpu(
        "FlashInfer: an output without a common stride stays as it was",
        f"{A}/flashinfer/_rows.py",
        "return out if made.data_ptr() == out.data_ptr() else",
        "return out if made.numel() else",
        ROWS,
    ),
    cpu(
        "FlashInfer: angles are products of f32",
        f"{A}/flashinfer/_rotary/rotations.py",
        'angle = apply("f64", value("position", index)) * value("frequency", "f64")',
        'angle = apply("f64", apply("f32", value("position", index)) * apply("f32", value("frequency", "f64")))',
        ROPE,
    ),
    cpu(
        "FlashInfer: a key begins with what is not rotated",
        f"{A}/flashinfer/_rotary/rope_quantize.py",
        "whole[..., :width], scale, rotation)\n        scaled(rotation.op, self.nope, whole[..., width:]",
        "whole[..., -width:], scale, rotation)\n        scaled(rotation.op, self.nope, whole[..., :-width]",
        ROPE,
    ),
)
