"""Tensors and fields of a layer of experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import INT32_MAX, Count, Single, Size, contradiction
from opfacade.core.tensor_lists import operand
from opfacade.plans._composites.growing import Stepwise
from opfacade.plans._matmul.scaling import BLOCK
from opfacade.plans._moe.family import Experts, MoeOp, TopK
from opfacade.plans._moe.router import Router, refuse_choice
from opfacade.plans._weights.weight import Weight, refuse

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedMoeArgs(Args):
    """The tensors of one layer. weight_layout is the order of the last two axes of weights; nk is [rows of the weight, k]."""

    x: Tensor = operand("[total_num_rows, hidden] in dtype; rows may have any stride")
    logits: Tensor = operand("[total_num_rows, experts] in router.dtype, with `router`")
    router_bias: Tensor = operand("f32 [experts], with router.bias: added to the logits")
    correction: Tensor = operand("f32 [experts], with router.correction: added to the scores for the choice only")
    ids: Tensor = operand("int32 [total_num_rows, top_k], without `router`: the experts of each row")
    weights: Tensor = operand("f32 [total_num_rows, top_k], without `router`: the weight of each choice")
    chosen_ids: Tensor = operand("written, with `router`: int32 [total_num_rows, top_k]")
    chosen_weights: Tensor = operand("written, with `router`: f32 [total_num_rows, top_k]")
    up: Tensor = operand("[local experts, 2 * width, hidden] in dtype; without gates [local experts, width, hidden]")
    up_bias: Tensor = operand("in bias_dtype, with `bias`: [local experts, 2 * width], or width without gates")
    down: Tensor = operand("[local experts, hidden, width] in dtype")
    up_scale: Tensor = operand(
        "with `scaling`: f32, token [local experts, rows of up], block [.., rows / 128, hidden / 128]; with weight_format: "
        "[local experts, rows of up, groups]"
    )
    down_scale: Tensor = operand(
        "with `scaling`: f32, token [local experts, hidden], block [.., hidden / 128, width / 128]; with weight_format: "
        "[local experts, hidden, groups]"
    )
    up_zero: Tensor = operand("with weight_format.zero: as up_scale")
    down_zero: Tensor = operand("with weight_format.zero: as down_scale")
    up_global: Tensor = operand("f32 [local experts], with weight_format.global_scale: one scale for the `up` of each expert")
    down_global: Tensor = operand("f32 [local experts], with weight_format.global_scale: one scale for each `down`")
    down_bias: Tensor = operand("in bias_dtype, with `bias`: [local experts, hidden]")
    shared_up: Tensor = operand("[2 * shared_width, hidden], with shared_width: the `up` of the shared expert")
    shared_down: Tensor = operand("[hidden, shared_width], with shared_width: the `down` of the shared expert")
    add: Tensor = operand("[total_num_rows, hidden] in dtype, with `add`: added to the sum")
    out: Tensor = operand("written: [total_num_rows, hidden] in dtype")


class LayerFields(MoeOp[FusedMoeArgs], Stepwise[FusedMoeArgs]):
    """Fields of a layer; FusedMoeDescriptor says what they mean."""

    op: Literal["fused_moe"] = Field(default="fused_moe", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "moe-f64", "moe-f32", "moe-mma16", "moe-mma8")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "hidden", "width"})
    grows: ClassVar[str] = "total_num_rows"
    later: ClassVar[frozenset[str]] = frozenset({"scaling", "weight_format"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"alpha", "limit"})
    total_num_rows: Count = Field(description="Rows of x.")
    experts: Experts = Field(description="Number of experts.")
    top_k: TopK = Field(description="Number of experts that each row chooses.")
    hidden: Size = Field(description="Elements of a row.")
    width: Size = Field(description="Number of elements between the two products of an expert.")
    dtype: Literal["f16", "bf16", "f32"] = Field(description="Element type of x, add, out and weights.")
    router: Router | None = Field(
        default=None, description="How ids and weights are computed from logits; null: they are inputs."
    )
    activation: Literal["silu", "gelu", "gelu_tanh", "relu2", "identity"] = Field(
        default="silu", description="The function of the gate."
    )
    gated: bool = Field(default=True, description="Whether an expert has gates as well as ups.")
    halves: Literal["gate_up", "up_gate", "interleaved"] = Field(
        default="gate_up", description="Order of the rows of `up`: gates first, ups first, or alternating with the gate first."
    )
    limit: Annotated[Single, Field(gt=0)] | None = Field(
        default=None, description="Clamps the gate to at most limit, and up to -limit to limit."
    )
    alpha: Annotated[Single, Field(ge=1e-30)] | None = Field(default=None, description="Slope of the sigmoid in silu.")
    beta: Single = Field(default=0.0, description="Number added to each up element.")
    weight_layout: Literal["nk", "kn"] = Field(default="nk", description="Order of the last two axes of the weights.")
    scaling: Literal["token", "block"] | None = Field(
        default=None,
        description='Experts in f8_e4m3 with a scale for each row of a weight ("token") or block of 128 x 128; null: in dtype.',
    )
    weight_format: Weight | None = Field(
        default=None, description="Format of `up` and `down`, with fewer bits than x; null: dtype, or that of scaling."
    )
    bias: bool = Field(default=False, description="Whether both products of an expert have biases.")
    bias_dtype: Literal["f16", "bf16", "f32"] | None = Field(default=None, description="Element type of biases; null: dtype.")
    weights_at: Literal["output", "input"] = Field(
        default="output", description="Whether the weight of a choice multiplies the output or the input of the expert."
    )
    shared_width: Count = Field(default=0, description="Width of the shared expert, which every row uses; 0: none.")
    add: bool = Field(default=False, description="Whether the operand add is added to the sum.")
    first_expert: Count = Field(default=0, description="First expert of this rank.")
    num_local: Size | None = Field(default=None, description="Number of experts of this rank; null: all from first_expert on.")

    @model_validator(mode="after")
    def _coherent(self) -> LayerFields:
        if self.router is not None:
            refuse_choice(self.router, self.experts, self.top_k, "router.")
        if self.scaling is not None:
            _refuse_scaling(self)
        if self.weight_format is not None:
            _refuse_format(self, self.weight_format)
        if self.first_expert >= self.experts:
            raise contradiction("first_expert", f"below {self.experts} experts", self.first_expert)
        if self.num_local is not None and self.first_expert + self.num_local > self.experts:
            raise contradiction(
                "num_local",
                f"at most {self.experts - self.first_expert}, the number of experts from first_expert on",
                self.num_local,
            )
        if self.total_num_rows * self.top_k > INT32_MAX:
            raise contradiction("total_num_rows", "at most 2^31 - 1 choices", self.total_num_rows)
        if self.alpha is not None and self.activation != "silu":
            raise contradiction("alpha", f"null for {self.activation}, whose sigmoid has no slope", self.alpha)
        if not self.gated:
            for field, default in (("halves", "gate_up"), ("beta", 0.0)):
                if getattr(self, field) != default:
                    raise contradiction(field, f"{default} without ups (gated=False)", getattr(self, field))
        if self.bias_dtype is not None and not self.bias:
            raise contradiction("bias_dtype", "null without bias", self.bias_dtype)
        for field in ("width", "shared_width"):
            if self.columns * getattr(self, field) > INT32_MAX:
                raise contradiction(field, f"at most {INT32_MAX // 2} with gates, whose `up` has 2 rows", getattr(self, field))
        return self

    @property
    def local(self) -> int:
        """The number of experts whose weights are on this rank."""
        return self.experts - self.first_expert if self.num_local is None else self.num_local

    @property
    def columns(self) -> int:
        """Rows of `up` for one element between the products."""
        return 2 if self.gated else 1


def _refuse_scaling(layer: LayerFields) -> None:
    """Checks that blocks of 128 elements, which share a scale, divide the rows."""
    if layer.scaling == "block":
        for field in ("hidden", "width"):
            if getattr(layer, field) % BLOCK:
                raise contradiction(field, f"a multiple of {BLOCK} with scaling block", getattr(layer, field))


class _Product(NamedTuple):
    """Fields of the products of experts that must be compatible with their weights."""

    dtype: str
    weight_layout: str
    scaling: None = None


def _refuse_format(layer: LayerFields, weight: Weight) -> None:
    if layer.scaling is not None:
        raise contradiction("scaling", "null with weight_format, whose rows of x are in dtype", layer.scaling)
    refuse(_Product(layer.dtype, layer.weight_layout), weight)
    for field, only in (("group_offset", 0), ("num_groups", None)):
        if getattr(weight, field) != only:
            raise contradiction(f"weight_format.{field}", f"{only} (the default) in a layer", getattr(weight, field))
