"""Gated activations, such as silu_and_mul, of the two halves of each row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import Args
from opfacade.core.dtypes import ITEMSIZE, DType
from opfacade.core.model import Count, Single, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, counted_by, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._folds.program import FoldArgs, FoldProgram
from opfacade.plans._gated import fold
from opfacade.plans._gated import program as gated
from opfacade.plans._gated.checks import check_expression
from opfacade.plans._quantize.quant import Quant, padded, refuse_scale, scale_dims
from opfacade.programs import text
from opfacade.programs.expression import Node
from opfacade.programs.fault import Fault
from opfacade.programs.fields import Expression, Number, ProgramDescriptor, refused

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["GatedActivationArgs", "GatedActivationDescriptor", "GatedActivationPlan", "Quant"]

Activation = Literal["silu", "gelu", "gelu_tanh", "relu2", "swiglu_oai", "identity"]
_OAI_ALPHA, _OAI_LIMIT = 1.702, 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedActivationArgs(Args):
    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": "[total_num_rows, 2 * width], or [total_num_rows, width] without a gate; overwritten with in_place",
        "out": "written: [total_num_rows, width], in the dtype of quant where it is set; absent with in_place",
        "scale": "in quant.scale_dtype; read: [1], positive, with quant.scale static; written: [1] with tensor, "
        "[total_num_rows] with token, one value per group in the layout quant.scale_layout",
        "num_valid": "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`",
    })  # fmt: skip
    x: Tensor
    out: Tensor | None = None
    scale: Tensor | None = None
    num_valid: Tensor | None = None


class GatedActivationDescriptor(ProgramDescriptor[GatedActivationArgs]):
    """out = activation(gate) * up, for each row of x, which contains both.

    gate_first: a row has `width` gates and then `width` ups; otherwise the ups come first. interleaved: gates and ups alternate
    (with gate_first, each pair begins with the gate). gated=False: a row has `width` gates, and out = activation(gate).
    limit: clamps the gate to at most `limit` and up to [-limit, limit]; NaN stays NaN. alpha: the slope of the sigmoid, for
    silu and swiglu_oai. swiglu_oai is gate * sigmoid(alpha * gate) * (up + 1), by default with alpha 1.702 and limit 7.
    expression: replaces the value of out by an f32 program of the inputs gate and up and, if they are set, of the scalars limit
    and alpha. in_place: the first `width` elements of each row of x are overwritten; the others do not change.
    quant: out is divided by a scale and cast to an 8-bit type; the scale is an operand, a result, or 1. quant.scale "tensor" is
    one scale for all valid rows; if no row is valid, it is the scale of zeros.
    All arithmetic is f32, and out is rounded once. Rows of x and out may have any strides; an interleaved pair must be
    contiguous.
    Raises DescriptorError for fields that contradict each other, with the path to the node for an expression.
    """

    op: Literal["gated_activation"] = Field(default="gated_activation", description="The operator.")
    category: ClassVar[str] = "activation"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "map-f64", "map-f32", "fold-f64", "fold-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "width"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"limit", "alpha"})
    total_num_rows: Count = Field(description="Rows of x.")
    width: Size = Field(description="Number of elements per row of out.")
    dtype: Literal["f16", "bf16", "f32"] = Field(description="Element type of x and out.")
    activation: Activation = Field(default="silu", description="The function of the gate.")
    expression: Expression | None = Field(
        default=None, description="Replaces the value of out by an expression of gate and up (docs/programs.md)."
    )
    gate_first: bool = Field(default=True, description="Whether the gates precede the ups.")
    interleaved: bool = Field(default=False, description="Whether gates and ups alternate.")
    gated: bool = Field(default=True, description="Whether rows of x contain up elements.")
    limit: Annotated[Single, Field(gt=0)] | None = Field(
        default=None,
        description="Clamps the gate to at most limit, and up to -limit to limit; other values use the same kernel.",
    )
    alpha: Annotated[Single, Field(ge=1e-30)] | None = Field(
        default=None, description="Slope of the sigmoid; other values use the same kernel."
    )
    quant: Quant | None = Field(default=None, description="How out is quantised; null: not quantised.")
    in_place: bool = Field(default=False, description="Whether the first half of each row of x is overwritten.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")

    @model_validator(mode="after")
    def _addressable(self) -> Any:
        """Refuses contradictory fields before the operands are computed."""
        self._refuse_quant()
        return super()._addressable()  # type: ignore[operator]

    def _refuse_quant(self) -> None:
        if self.quant is None:
            return
        refuse_scale(self.quant, self.total_num_rows)
        if self.quant.scale == "group" and self.width % self.quant.group:
            raise contradiction("quant.group", f"a divisor of width={self.width}", self.quant.group)
        if self.in_place:
            raise contradiction("in_place", "False with quant, because out has another dtype", True)

    @model_validator(mode="after")
    def _meaningful(self) -> GatedActivationDescriptor:
        if not self.gated:
            for field, default in (("gate_first", True), ("interleaved", False)):
                if getattr(self, field) != default:
                    raise contradiction(field, f"{default} without ups (gated=False)", getattr(self, field))
            if self.activation == "swiglu_oai":
                raise contradiction("gated", "True for swiglu_oai, because it multiplies by up + 1", False)
        if self.in_place and self.interleaved:
            hint = "The first half of a row has pairs that are still to be read."
            raise contradiction("in_place", "False for interleaved rows", True, hint)
        if self.expression is None:
            if self.alpha is not None and not gated.takes_alpha(self.activation):
                raise contradiction("alpha", f"None for {self.activation}, whose sigmoid has no slope", self.alpha)
            return self
        if self.activation != "silu":
            raise contradiction("activation", "the default with an expression, which replaces it", self.activation)
        try:
            check_expression(self)
        except Fault as fault:
            raise refused(fault) from None
        return self

    def values(self) -> dict[str, Node]:
        return {} if self.expression is None else {"expression": self.expression}

    @classmethod
    def _nodes_in(cls, given: dict[str, Any], lets: Sequence[Node]) -> dict[str, Any]:
        if given.get("expression") is None:
            return given
        return given | {"expression": text.node_from(given["expression"], lets, ".expression")}

    @property
    def scalars(self) -> tuple[Number, ...]:
        """The scalars of the program."""
        oai = self.activation == "swiglu_oai"
        limit = _OAI_LIMIT if oai and self.limit is None else self.limit
        alpha = _OAI_ALPHA if oai and self.alpha is None else self.alpha
        return gated.numbers(limit, alpha) if self.expression is None else gated.numbers(limit, alpha)[: self._told]

    @property
    def _told(self) -> int:
        return (self.limit is not None) + (self.alpha is not None)

    def program(self) -> dict[str, Node]:
        """{"out": its value} as a program of the inputs gate and up, and of scale if it is static. If scales are computed, it
        is the value before quantisation: `folded` has the whole."""
        names = [number.name for number in self.scalars]
        made = self.expression
        if made is None:
            made = gated.gated(self.activation, self.gated, "limit" in names, "alpha" in names)
        if self.quant is None or self.makes_scales:
            return {"out": made}
        return {"out": self.quant.quotient(made, gated.SCALE if self.has_scale else None)}

    @property
    def has_scale(self) -> bool:
        return self.quant is not None and self.quant.scale == "static"

    @property
    def makes_scales(self) -> bool:
        """Whether the op is a fold, because scales are computed."""
        return self.quant is not None and self.quant.dynamic

    def folded(self) -> FoldProgram:
        """The program with its scales, if they are computed."""
        return _folds.get(self.form, lambda: fold.fold_of(self, self.program()["out"])).on(fold.lengths_of(self))

    def launched(self) -> FoldProgram:
        """With quant.scale tensor: the fold of rows that reads the scale and writes the largest |result| of each row."""
        made = _launched.get(self.form, lambda: fold.launched_of(self, self.program()["out"]))
        return made.on((self.total_num_rows, self.width))

    @property
    def form(self) -> Hashable:
        """Identifies the problems whose programs differ only in sizes."""
        return self.specialization

    @property
    def refused_alike(self) -> Hashable:
        """A row that is too long is refused."""
        return self.specialization, self.width

    def facts(self) -> dict[str, Any]:
        """Additional fields of the SKU of a fold."""
        return {"row": "_".join(self.parts) + ("_pairs" if self.interleaved else ""), "scale": self.quant.scale}  # type: ignore[union-attr]

    def dims(self) -> Mapping[str, tuple[tuple[int, ...], ...]]:
        return fold.dims_of(self)

    def fold_args(self, args: Args) -> FoldArgs:
        return fold.call_of(self, cast("fold.GatedCall", args))

    @property
    def out_dtype(self) -> DType:
        """Element type of out."""
        return self.dtype if self.quant is None else self.quant.dtype

    @property
    def key(self) -> str:
        """The name of the program in a SKU."""
        return f"v{text.digest(self.program())[:24]}"

    @property
    def parts(self) -> tuple[str, ...]:
        """The inputs of the program, in their order in a row."""
        if not self.gated:
            return ("gate",)
        return ("gate", "up") if self.gate_first else ("up", "gate")

    def views(self, x: Tensor) -> dict[str, Tensor]:
        """The parts of x [rows, len(parts) * width], by name."""
        count = len(self.parts)
        cut = [x[:, i::count] for i in range(count)] if self.interleaved else x.chunk(count, 1)
        return dict(zip(self.parts, cut, strict=True))

    def operands(self) -> dict[str, TensorSpec]:
        rows, size, valid = (
            Dim("total_num_rows", self.total_num_rows),
            ITEMSIZE[self.dtype],
            "num_valid" if self.num_valid else "",
        )
        wide = Dim("2*width", 2 * self.width) if self.gated else Dim("width", self.width)
        x = TensorSpec((rows, wide), self.dtype, "inout" if self.in_place else "in", "strided", size, valid_rows=valid)
        if self.interleaved:  # a pair is loaded at once
            x = x._replace(layout="rows", alignment=2 * size, step=2 * size)
        found = {"x": x}
        if self.has_scale and self.quant is not None:
            dtype = self.quant.scale_dtype
            found["scale"] = TensorSpec((Dim("1", 1),), dtype, "in", "contiguous", alignment=ITEMSIZE[dtype])
        if not self.in_place:
            shape, own = (rows, Dim("width", self.width)), ITEMSIZE[self.out_dtype]
            found["out"] = TensorSpec(shape, self.out_dtype, "out", "strided", own, valid_rows=valid)
        if self.quant is not None and self.makes_scales:
            found["scale"] = self._scales(self.quant, valid)
        return found | ({"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {})

    def _scales(self, quant: Quant, valid: str) -> TensorSpec:
        """The spec of the scales that are written."""
        rows, groups = Dim("total_num_rows", self.total_num_rows), Dim("width / group", self.width // quant.group)
        sizes = {(): Dim("1", 1), (0,): rows, (1,): groups}
        dims = scale_dims(quant, (1,))
        shape = tuple(sizes[axes] for axes in dims)
        if quant.scale_layout == "column_padded4":
            shape = (groups, Dim("total_num_rows up to 4", padded(self.total_num_rows, quant)))
        spec = TensorSpec(shape, quant.scale_dtype, "out", "strided", ITEMSIZE[quant.scale_dtype])
        return counted_by(spec, dims.index((0,)) if valid and (0,) in dims else None, "num_valid")


_folds: AnswerCache[FoldProgram] = AnswerCache()
_launched: AnswerCache[FoldProgram] = AnswerCache()


class GatedActivationPlan(Plan[GatedActivationArgs]):
    """Activations with a gate."""


EXAMPLES = (
    GatedActivationDescriptor(total_num_rows=64, width=256, dtype="bf16"),
    GatedActivationDescriptor(total_num_rows=7, width=63, dtype="f32", activation="gelu", gate_first=False, in_place=True),
    GatedActivationDescriptor(
        total_num_rows=13, width=65, dtype="bf16", activation="swiglu_oai", interleaved=True, num_valid=True
    ),
    GatedActivationDescriptor(total_num_rows=9, width=40, dtype="f16", activation="gelu_tanh", limit=3.0),
    GatedActivationDescriptor(total_num_rows=5, width=33, dtype="bf16", activation="relu2", gated=False),
    GatedActivationDescriptor(
        total_num_rows=6, width=24, dtype="f16", expression=gated.GATE * gated.UP / (1.0 + abs(gated.GATE))
    ),
    GatedActivationDescriptor(total_num_rows=7, width=48, dtype="bf16", quant=Quant(scale="static")),
    GatedActivationDescriptor(total_num_rows=7, width=512, dtype="bf16", quant=Quant(scale_layout="column_padded4")),
    GatedActivationDescriptor(
        total_num_rows=5,
        width=96,
        dtype="bf16",
        activation="swiglu_oai",
        interleaved=True,
        num_valid=True,
        quant=Quant(group=32, scale_dtype="f8_e8m0"),
    ),
    GatedActivationDescriptor(total_num_rows=6, width=65, dtype="f16", quant=Quant(dtype="i8", scale="token")),
    GatedActivationDescriptor(total_num_rows=6, width=96, dtype="bf16", num_valid=True, quant=Quant(scale="tensor")),
)
