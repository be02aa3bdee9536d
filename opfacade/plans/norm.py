"""Norms of rows: RMS and layer norm with fused residual sum, gate and quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, Single, Size, contradiction
from opfacade.plan import Plan
from opfacade.plans._folds.named import Axes, NamedFold, launched_on
from opfacade.plans._norm_program import FloatDType, launched_of, layout_of, lengths_of, program_of
from opfacade.plans._quantize.quant import Quant, padded, refuse_scale

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._folds.program import FoldProgram

__all__ = ["NormArgs", "NormDescriptor", "NormPlan", "Quant", "flashinfer", "gemma", "huggingface", "vllm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NormArgs(Args):
    """The tensors of one norm. Rows of x, residual, gate and the outputs may have any stride."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": "[total_num_rows, hidden] in dtype; overwritten with `in_place`",
        "weight": "[hidden] in weight_dtype",
        "bias": "[hidden] in weight_dtype, with `bias`",
        "residual": "[total_num_rows, hidden] in dtype, with `residual`: read, and overwritten with x + residual",
        "gate": "[total_num_rows, hidden] in dtype, with `gate`",
        "out": "written: [total_num_rows, hidden] in dtype, or in that of `quant`",
        "full_out": "written: [total_num_rows, hidden] in dtype, with `full_out`: the result before it is quantised",
        "scale": "in quant.scale_dtype; read: [1] with quant.scale static; written: [1] with tensor, [total_num_rows] with "
        "token, or one value per group",
        "num_valid": "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`",
    })  # fmt: skip

    x: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None
    residual: Tensor | None = None
    gate: Tensor | None = None
    out: Tensor | None = None
    full_out: Tensor | None = None
    scale: Tensor | None = None
    num_valid: Tensor | None = None


class NormDescriptor(NamedFold[NormArgs]):
    """out = (s - mean) * rsqrt(variance + eps) * weight + bias, for each row, or for each of `groups` parts of a row.

    s is x, or x + residual, which overwrites residual, rounded to dtype. kind "rms": mean is 0, and variance is the mean of
    squares; "layer": variance is the mean of squared deviations from the mean. Arithmetic is f32 and the result is rounded
    once. residual_sum "rounded": the norm also uses the rounded sum; normed "rounded": the normalised elements are rounded to
    dtype before they are multiplied by the weight. weight "one_plus" multiplies by 1 + weight. gate multiplies the result by
    silu or sigmoid of the operand gate. quant: the f32 result is quantised; full_out also writes it in dtype. quant.scale
    "tensor" is one scale for all valid rows; if no row is valid, it is the scale of zeros.
    Kernels add squares in f32. Their bound holds for elements of s up to 2^63 / sqrt(n) with n elements per norm, for "layer"
    up to 2^62 / sqrt(n). For larger elements they may give 0 or NaN; the reference adds in f64.
    With eps 0, a row of zeros gives NaN. Raises DescriptorError if groups or quant.group do not divide hidden, and for
    quant.scale "tensor" without rows.
    """

    op: Literal["norm"] = Field(default="norm", description="The operator.")
    category: ClassVar[str] = "norm"
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"eps"})
    kind: Literal["rms", "layer"] = Field(description="RMS norm, or layer norm, which subtracts the mean.")
    total_num_rows: Count = Field(description="Rows.")
    hidden: Size = Field(description="Elements of a row.")
    groups: Size = Field(default=1, description="Number of equal parts of a row that are normalised separately, such as heads.")
    dtype: FloatDType = Field(description="Element type of x, residual, gate and full_out, and of out without quant.")
    weight: Literal["scale", "one_plus", "none"] = Field(default="scale", description="Factor of the normalised elements.")
    weight_dtype: FloatDType | None = Field(default=None, description="Element type of weight and bias; null: dtype.")
    bias: bool = Field(default=False, description="Whether the operand bias is added.")
    eps: Single = Field(default=1e-6, description="Number added to the variance.")
    residual: bool = Field(
        default=False, description="Whether the operand residual is added first, and overwritten with the sum."
    )
    residual_sum: Literal["f32", "rounded"] = Field(
        default="f32", description="Whether the norm uses the f32 sum or the rounded sum."
    )
    normed: Literal["f32", "rounded"] = Field(
        default="f32", description="Whether normalised elements are rounded before they are multiplied by the weight."
    )
    gate: Literal["none", "silu", "sigmoid"] = Field(
        default="none", description="Function of the operand gate that multiplies the result."
    )
    quant: Quant | None = Field(default=None, description="How the result is quantised; null: not quantised.")
    full_out: bool = Field(default=False, description="Whether the result is also written before it is quantised.")
    in_place: bool = Field(default=False, description="Whether the result overwrites x; there is then no operand out.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    def refuse(self) -> None:
        if self.hidden % self.groups:
            raise contradiction("groups", f"a divisor of hidden={self.hidden}", self.groups)
        if self.eps < 0:
            raise contradiction("eps", "0 or more", self.eps)
        quant, width = self.quant, self.hidden // self.groups
        if quant is None:
            if self.full_out:
                raise contradiction("full_out", "False without quant, because out is that result", True)
            return
        if self.in_place:
            raise contradiction("in_place", "False with quant, because the result has another dtype", True)
        refuse_scale(quant, self.total_num_rows)
        if quant.scale == "group" and width % quant.group:
            raise contradiction("quant.group", f"a divisor of {width}, the number of elements of a norm", quant.group)

    def program(self) -> FoldProgram:
        return program_of(self)

    def launched(self) -> FoldProgram:
        """With quant.scale tensor: the fold of rows that reads the scale and writes the largest |result| of each norm."""
        return launched_on(self, lambda: launched_of(self))

    def lengths(self) -> tuple[int, ...]:
        return lengths_of(self)

    def dims(self) -> Mapping[str, tuple[Axes, ...]]:
        return layout_of(self).dims

    def dim_names(self) -> Mapping[Axes, str]:
        inner = layout_of(self).inner
        found = {(0,): "total_num_rows", inner: "hidden"}
        return found | ({inner[:-1]: "hidden / group"} if len(inner) > 1 else {})

    def extents(self) -> Mapping[tuple[str, int], int]:
        if self.quant is None or self.quant.scale_layout != "column_padded4":
            return {}
        return {("scale", 1): padded(self.total_num_rows, self.quant)}

    def facts(self) -> dict[str, Any]:
        return {"kind": self.kind}


class NormPlan(Plan[NormArgs]):
    """Norms of rows."""


def vllm(**fields: object) -> NormDescriptor:
    """The roundings of vLLM's rms_norm and fused_add_rms_norm: the sum is rounded before the variance, and the normalised
    elements before the weight."""
    return _preset(fields, residual_sum="rounded", normed="rounded")


def flashinfer(**fields: object) -> NormDescriptor:
    """The roundings of FlashInfer's rmsnorm and fused_add_rmsnorm: all f32, rounded once."""
    return _preset(fields, residual_sum="f32", normed="f32")


def huggingface(**fields: object) -> NormDescriptor:
    """The roundings of transformers' LlamaRMSNorm after a residual sum in the model's dtype."""
    return _preset(fields, residual_sum="rounded", normed="rounded")


def gemma(**fields: object) -> NormDescriptor:
    """The roundings of transformers' GemmaRMSNorm: 1 + weight, normalised in f32, after a residual sum in the model's dtype."""
    return _preset(fields, weight="one_plus", residual_sum="rounded", normed="f32")


def _preset(fields: Mapping[str, Any], **chosen: object) -> NormDescriptor:
    return NormDescriptor(**({"kind": "rms"} | chosen | dict(fields)))


EXAMPLES = (
    NormDescriptor(kind="rms", total_num_rows=64, hidden=4096, dtype="bf16"),
    NormDescriptor(kind="rms", total_num_rows=7, hidden=7168, dtype="bf16", residual=True),
    NormDescriptor(kind="layer", total_num_rows=63, hidden=257, dtype="f32", bias=True),
    NormDescriptor(kind="layer", total_num_rows=5, hidden=2048, dtype="f16", weight_dtype="f32", bias=True, num_valid=True),
    NormDescriptor(kind="rms", total_num_rows=13, hidden=1024, groups=8, dtype="bf16", in_place=True),
    NormDescriptor(kind="rms", total_num_rows=9, hidden=512, groups=4, dtype="bf16", weight="none", gate="silu"),
    NormDescriptor(
        kind="rms",
        total_num_rows=7,
        hidden=1024,
        dtype="bf16",
        residual=True,
        quant=Quant(scale_layout="column"),
        full_out=True,
    ),
    vllm(total_num_rows=7, hidden=768, dtype="bf16", residual=True, quant=Quant(dtype="i8", scale="token")),
    gemma(total_num_rows=7, hidden=640, dtype="bf16", quant=Quant(scale="static")),
    vllm(total_num_rows=7, hidden=776, dtype="bf16", residual=True, num_valid=True, quant=Quant(scale="tensor"), full_out=True),
    NormDescriptor(kind="rms", total_num_rows=7, hidden=516, groups=4, dtype="bf16", quant=Quant(dtype="i8", scale="token")),
)
