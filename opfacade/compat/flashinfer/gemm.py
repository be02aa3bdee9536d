"""FlashInfer's matrix products, on `MatmulDescriptor`. `backend`, `pdl`, `use_pdl` and `mma_sm` have no effect.

Sums are f32 and rounded once; with block scales, they are scaled every 128 elements. Any sizes are allowed. A matrix may be
row-major or column-major, with any stride."""

from __future__ import annotations

from typing import Any

import torch

from opfacade.compat.dtypes import FP8
from opfacade.compat.flashinfer._products.product import Factors, multiplied, require_matrices, scale_of, scales_of_blocks
from opfacade.compat.flashinfer.grouped_gemm import SegmentGEMMWrapper as SegmentGEMMWrapper
from opfacade.compat.flashinfer.grouped_gemm import batch_deepgemm_fp8_nt_groupwise as batch_deepgemm_fp8_nt_groupwise
from opfacade.compat.flashinfer.grouped_gemm import group_deepgemm_fp8_nt_groupwise as group_deepgemm_fp8_nt_groupwise
from opfacade.compat.flashinfer.grouped_gemm import group_gemm_fp8_nt_groupwise as group_gemm_fp8_nt_groupwise
from opfacade.compat.refusals import missing as _missing
from opfacade.compat.refusals import unmapped, wrong, wrong_shape

_BLOCKS = (1, 128, 128)
_SIXTEEN = (torch.bfloat16,)


def mm_bf16(
    a: torch.Tensor,
    b: torch.Tensor,
    bias: torch.Tensor | None = None,
    pdl: bool = False,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    backend: str = "cudnn",
) -> torch.Tensor:
    """a `[m, k]` times b `[k, n]`, plus bias `[n]`: `[m, n]` in out_dtype."""
    sizes = require_matrices("mm_bf16", {"a": a, "b": b}, ("m, k", "k, n"), _SIXTEEN)
    return multiplied(Factors("mm_bf16", a, b, sizes, bias=bias), out, out_dtype)


def bmm_bf16(
    A: torch.Tensor,
    B: torch.Tensor,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    backend: str = "cudnn",
) -> torch.Tensor:
    """A `[b, m, k]` times B `[b, k, n]`: `[b, m, n]` in out_dtype."""
    sizes = require_matrices("bmm_bf16", {"A": A, "B": B}, ("b, m, k", "b, k, n"), _SIXTEEN)
    return multiplied(Factors("bmm_bf16", A, B, sizes), out, out_dtype)


def bmm_fp8(
    A: torch.Tensor,
    B: torch.Tensor,
    A_scale: torch.Tensor,
    B_scale: torch.Tensor,
    dtype: torch.dtype,
    out: torch.Tensor | None = None,
    backend: str = "cublas",
) -> torch.Tensor:
    """A `[b, m, k]` times B `[b, k, n]`, both e4m3 or both e5m2, times A_scale and B_scale (f32 with one element); the result
    has dtype."""
    op = "bmm_fp8"
    sizes = require_matrices(op, {"A": A, "B": B}, ("b, m, k", "b, k, n"), FP8)
    scales = (scale_of(op, "A_scale", A_scale), scale_of(op, "B_scale", B_scale))
    return multiplied(Factors(op, A, B, sizes, scales=scales, scaling="tensor"), out, dtype)


def gemm_fp8_nt_groupwise(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor,
    b_scale: torch.Tensor,
    scale_major_mode: str | None = None,
    mma_sm: int = 1,
    scale_granularity_mnk: tuple[int, int, int] = _BLOCKS,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    backend: str = "cutlass",
) -> torch.Tensor:
    """a `[m, k]` times b `[n, k]` transposed, both e4m3 or both e5m2: `[m, n]`, by default bf16.

    scale_major_mode: "K" for a_scale `[m, k / 128]` and b_scale `[n / 128, k / 128]`, "MN" for both transposed. With the
    backend "cutile", None means "K"."""
    op = "gemm_fp8_nt_groupwise"
    sizes = require_matrices(op, {"a": a, "b": b}, ("m, k", "n, k"), FP8, transposed=True)
    if not isinstance(scale_granularity_mnk, (tuple, list)) or tuple(scale_granularity_mnk) != _BLOCKS:
        raise unmapped(op, "scale_granularity_mnk", str(_BLOCKS), scale_granularity_mnk)
    mode = "K" if scale_major_mode is None and backend == "cutile" else scale_major_mode
    if not isinstance(mode, str) or mode not in ("K", "MN"):
        raise wrong(op, "scale_major_mode", "'K' or 'MN'", repr(mode))
    scales = scales_of_blocks(op, {"a_scale": a_scale, "b_scale": b_scale}, sizes, mode == "MN")
    wanted = out.dtype if isinstance(out, torch.Tensor) else _or_bf16(out_dtype)
    factors = Factors(op, a, b.mT, sizes, scales=scales, scaling="block columns" if mode == "MN" else "block")
    return multiplied(factors, out, wanted)


def fp8_blockscale_gemm_sm90(
    input: torch.Tensor,
    weight: torch.Tensor,
    input_scale: torch.Tensor | None = None,
    weight_scale: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """input `[m, k]` times weight `[n, k]` transposed, both fp8, with input_scale `[m, k / 128]` and weight_scale `[n / 128, k
    / 128]`; the result is bf16 by default. bf16 inputs, which FlashInfer quantises first, are refused."""
    op = "fp8_blockscale_gemm_sm90"
    given = {"input": input, "weight": weight}
    sizes = require_matrices(op, given, ("m, k", "n, k"), FP8, transposed=True)
    scales = scales_of_blocks(op, {"input_scale": input_scale, "weight_scale": weight_scale}, sizes, False)
    factors = Factors(op, input, weight.mT, sizes, scales=scales, scaling="block")
    return multiplied(factors, out, _or_bf16(out_dtype))


def tinygemm_bf16(
    input: torch.Tensor,
    weight: torch.Tensor,
    out: torch.Tensor,
    bias: torch.Tensor | None = None,
    use_pdl: bool = False,
) -> None:
    """Writes input `[m, k]` times weight `[n, k]` transposed, plus bias `[n]`, to out `[m, n]`; all bf16."""
    op = "tinygemm_bf16"
    sizes = require_matrices(op, {"input": input, "weight": weight}, ("m, k", "n, k"), _SIXTEEN, transposed=True)
    if out is None:
        raise wrong_shape(op, "out", f"{list(sizes.out)}", "None")
    multiplied(Factors(op, input, weight.mT, sizes, bias=bias), out, torch.bfloat16)


def _or_bf16(dtype: torch.dtype | None) -> torch.dtype:
    return torch.bfloat16 if dtype is None else dtype


def __getattr__(name: str) -> Any:
    raise _missing(__name__, name, globals())
