"""Quantised weights of checkpoints: from their layouts to that of products, and back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args, ArgsT
from opfacade.core.dtypes import ITEMSIZE, DType
from opfacade.core.model import Size
from opfacade.core.operands import Contents, Dim, TensorSpec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._composites.growing import Stepwise
from opfacade.plans._weights import stored as _stored_weight
from opfacade.plans._weights import stored_steps as _stored_steps
from opfacade.plans._weights.form import WeightForm
from opfacade.plans._weights.stored import STORED, Source
from opfacade.plans._weights.weight import Weight
from opfacade.plans._weights.weight import wrong_values as wrong_weights

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.plans._composites.steps import Step

__all__ = [
    "PackWeightsArgs", "PackWeightsDescriptor", "PackWeightsPlan", "UnpackWeightsDescriptor", "UnpackWeightsPlan", "Weight",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PackWeightsArgs(Args):
    """The tensors of one conversion. pack_weights reads the tensors of the checkpoint, stored_weight and others, which may have
    any strides, and writes those of a product; unpack_weights does the inverse."""

    stored_weight: Tensor | None = operand("codes in the layout of the checkpoint: `source` determines the shape and the type")
    stored_scale: Tensor | None = operand(
        "in weight_format.scale_dtype: the checkpoint's scales; `source` determines the shape"
    )
    stored_zero: Tensor | None = operand("the checkpoint's zero points; `source` determines the shape; with weight_format.zero")
    stored_groups: Tensor | None = operand("int32 [k]: the group of each element (g_idx), with weight_format.num_groups")
    weight: Tensor | None = operand("u8 [n, k / 2], the operand of a product: two codes per byte")
    weight_scale: Tensor | None = operand("in weight_format.scale_dtype [n, groups]")
    weight_zero: Tensor | None = operand("[n, groups], u8 with weight_format.zero int, else as weight_scale")
    weight_groups: Tensor | None = operand("int32 [k], with weight_format.num_groups")


class _Layouts(Stepwise[ArgsT]):
    """Fields and operands that both directions share."""

    category: ClassVar[str] = "weights"
    error_models: ClassVar[tuple[str, ...]] = ("exact",)
    sizes: ClassVar[frozenset[str]] = frozenset({"n", "k"})
    source: Source = Field(description="The layout of the checkpoint, named after the library that writes it.")
    n: Size = Field(description="Columns of the product: rows of the weight.")
    k: Size = Field(description="Elements of a column, a multiple of 8.")
    batch: Size = Field(default=1, description="Number of matrices, such as experts; with 1, operands have no batch axis.")
    weight_format: Weight = Field(description="The format of the weight: its codes, groups and zero points.")
    inner_k_tiles: Literal[2, 4, 8] = Field(
        default=8, description="Number of adjacent tiles of 16 elements of k in tinygemm's layout."
    )

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        """Refuses contradictory fields before the operands are computed."""
        _stored_weight.refuse(self)
        return super()._addressable()  # type: ignore[operator]

    def steps(self) -> tuple[Step, ...]:
        """Conversions of codes, scales, zero points and groups."""
        return _stored_steps.steps(self)

    def operands(self) -> dict[str, TensorSpec]:
        packs, weight = self.op == "pack_weights", self.weight_format
        lead = (Dim("batch", self.batch),) if self.batch > 1 else ()
        found = {name: _role(spec, not packs) for name, spec in self._stored(lead).items()}
        made = WeightForm(weight, lead, Dim("n", self.n), self.k).tensors("weight")
        made.pop("weight_global", None)
        return found | {name: _role(spec, packs) for name, spec in made.items()}

    def wrong_values(self, name: str, args: PackWeightsArgs) -> tuple[Tensor, str] | None:
        """Also refuses zero points above 15, whose upper bits would be lost."""
        found = super().wrong_values(name, args)
        return wrong_weights(name, getattr(args, name), found) if self.operands()[name].role == "in" else found

    def _stored(self, lead: tuple[Dim, ...]) -> dict[str, TensorSpec]:
        stored, weight = STORED[self.source], self.weight_format
        found = {"stored_weight": _any((*lead, *stored.axes(self)), stored.word)}
        found["stored_scale"] = _any((*lead, *_stored_weight.scale_axes(self)), weight.scale_dtype)
        if weight.zero != "none":
            dtype: DType = "i32" if weight.zero == "int" else weight.scale_dtype
            found["stored_zero"] = _any((*lead, *_stored_weight.zero_axes(self)), dtype)
        if weight.num_groups is not None:
            found["stored_groups"] = WeightForm(weight, (), Dim("n", self.n), self.k).tensors("weight")["weight_groups"]
        return found


def _any(shape: tuple[Dim, ...], dtype: DType) -> TensorSpec:
    return TensorSpec(shape, dtype, "in", "strided", ITEMSIZE[dtype])


def _role(spec: TensorSpec, written: bool) -> TensorSpec:
    return spec._replace(role="out", contents=Contents()) if written else spec


class PackWeightsDescriptor(_Layouts[PackWeightsArgs]):
    """Convert a checkpoint's 4-bit weight to the layout of `weight_format`, without loss, and write it to given tensors.

    The tensors that are written are operands of a product with the same `weight_format`; a slice of them along n or k is a
    view. A call does not read tensors on the host, so a captured graph repacks new weights at the same addresses.
    With source gptq, the stored zero point is the zero point - 1, modulo 16. Raises DescriptorError if the source has no such
    format, or if n or k is not a multiple of the codes in a word.
    """

    op: Literal["pack_weights"] = Field(default="pack_weights", description="The operator.")


class UnpackWeightsDescriptor(_Layouts[PackWeightsArgs]):
    """The inverse of PackWeightsDescriptor: write a weight in the layout of the checkpoint, bit for bit."""

    op: Literal["unpack_weights"] = Field(default="unpack_weights", description="The operator.")


class PackWeightsPlan(Plan[PackWeightsArgs]):
    """Converts a checkpoint's weight."""


class UnpackWeightsPlan(Plan[PackWeightsArgs]):
    """Converts a weight back to the layout of a checkpoint."""


_GPTQ = Weight(dtype="uint4", group=32, scale_dtype="f16", zero="int")
_PROBLEMS: tuple[dict[str, Any], ...] = (
    {"source": "gptq", "n": 24, "k": 72, "batch": 3, "weight_format": _GPTQ},
    {"source": "gptq", "n": 16, "k": 40, "weight_format": _GPTQ.model_copy(update={"group": None, "num_groups": 3})},
    {"source": "gptq_v2", "n": 8, "k": 128, "weight_format": _GPTQ.model_copy(update={"group": 128})},
    {"source": "awq", "n": 24, "k": 72, "batch": 2, "weight_format": _GPTQ},
    {"source": "compressed_tensors", "n": 9, "k": 104, "weight_format": Weight(dtype="int4", group=32)},
    {
        "source": "compressed_tensors",
        "n": 16,
        "k": 64,
        "batch": 2,
        "weight_format": Weight(dtype="uint4", num_groups=5, zero="int", scale_dtype="f32"),
    },
    {"source": "hqq", "n": 6, "k": 192, "weight_format": Weight(dtype="uint4", group=64, zero="float", scale_dtype="f16")},
    {"source": "torchao", "n": 7, "k": 96, "batch": 2, "weight_format": Weight(dtype="int4", group=32, zero="added")},
    {
        "source": "tinygemm",
        "n": 24,
        "k": 128,
        "inner_k_tiles": 4,
        "weight_format": Weight(dtype="int4", group=64, zero="added"),
    },
    {"source": "mxfp4", "n": 5, "k": 96, "batch": 3, "weight_format": Weight(dtype="e2m1", group=32, scale_dtype="f8_e8m0")},
    {"source": "nvfp4", "n": 5, "k": 80, "weight_format": Weight(dtype="e2m1", group=16, scale_dtype="f8_e4m3")},
)
EXAMPLES = tuple(kind(**one) for kind in (PackWeightsDescriptor, UnpackWeightsDescriptor) for one in _PROBLEMS)
