"""The sum over all ranks, followed by residual, norm and quantisation of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.answer_cache import AnswerCache
from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.joined import Joined, JoinedArgs
from opfacade.core.model import Count, Single, Size, contradiction
from opfacade.core.operands import Dim, TensorSpec, nbytes, num_valid_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._collective.family import CollectiveOp, DType
from opfacade.plans._composites.steps import problem
from opfacade.plans._quantize.quant import Quant, padded
from opfacade.plans._world import WORLD, World, arena

if TYPE_CHECKING:
    from torch import Tensor

SECOND_STEP_BYTES = 875_000  # bytes that a link transfers in the time of an additional step, 2.5 us at 350 GB/s
Residual = Literal["none", "replicated", "row_sharded"]
_epilogues: AnswerCache[Descriptor[Any]] = AnswerCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceNormArgs(JoinedArgs):
    """The tensors of one call, and the group."""

    group: Joined | None = operand("the group of ranks that make this call; not needed if world is 1")
    x: Tensor = operand("[total_num_rows, hidden] in dtype: the term of this rank")
    weight: Tensor | None = operand("[hidden] in weight_dtype, the same on all ranks; absent with weight none")
    bias: Tensor | None = operand("[hidden] in weight_dtype, the same on all ranks, with `bias`")
    residual: Tensor | None = operand(
        "in dtype: read, and overwritten with sum + residual; [total_num_rows, hidden], with row_sharded "
        "[ceil(total_num_rows / world), hidden]: row i is row i div world of rank i mod world"
    )
    out: Tensor = operand("written: [total_num_rows, hidden] in dtype, or in that of `quant`")
    full_out: Tensor | None = operand("written: [total_num_rows, hidden] in dtype, with `full_out`: before it is quantised")
    scale: Tensor | None = operand(
        "in quant.scale_dtype; read: [1] with quant.scale static; written: [total_num_rows] with token, or one value per group"
    )
    num_valid: Tensor | None = operand(
        "int32 [1], the same on all ranks: the number of valid rows; later ones are neither read nor written; with `num_valid`"
    )


class AllReduceNormDescriptor(CollectiveOp[AllReduceNormArgs]):
    """out = quantise(norm(sum of x over all ranks + residual)) for each row, the same on all ranks.

    The sum is added in f32, in the order of ranks, and rounded once to dtype. The op `norm` processes it, with the same bits as
    a separate call; with norm "none", the residual is added, rounded to dtype, and the op `quantize` follows. All parts except
    the sum are optional. `steps`: "one_shot" sends all rows to all ranks; "two_shot" sends row i to rank i mod world, which
    computes it and sends the result (quantised, if quant is set) to all ranks; "auto" uses two steps if they save more time for
    bytes than the second step costs. The bits are the same. A residual that is row_sharded is never sent and needs two steps.
    quant.scale may be none, static, token or group, which do not depend on other rows.
    """

    op: Literal["all_reduce_norm"] = Field(default="all_reduce_norm", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "rank-sum-f32", "all-reduce-fold-f64", "all-reduce-fold-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows"})
    tuning_ignores: ClassVar[frozenset[str]] = frozenset({"eps"})
    world: World = WORLD
    total_num_rows: Count = Field(description="Rows, the same on all ranks.")
    hidden: Size = Field(description="Elements of a row.")
    dtype: DType = Field(description="Element type of x, residual and full_out, and of out without quant.")
    residual: Residual = Field(
        default="none", description='Tensor that is added to the sum; with "row_sharded", each rank has a part of its rows.'
    )
    norm: Literal["rms", "layer", "none"] = Field(default="rms", description="The kind of norm, as in the op norm, or none.")
    weight: Literal["scale", "one_plus", "none"] = Field(default="scale", description="Factor of the normalised elements.")
    weight_dtype: DType | None = Field(default=None, description="Element type of weight and bias; null: dtype.")
    bias: bool = Field(default=False, description="Whether the operand bias is added.")
    eps: Single = Field(default=1e-6, description="Number added to the variance.")
    residual_sum: Literal["f32", "rounded"] = Field(
        default="f32", description="Whether the norm uses the f32 sum or the rounded sum with the residual."
    )
    normed: Literal["f32", "rounded"] = Field(
        default="f32", description="Whether normalised elements are rounded before they are multiplied by the weight."
    )
    quant: Quant | None = Field(default=None, description="How the result is quantised; null: not quantised.")
    full_out: bool = Field(default=False, description="Whether the result is also written before it is quantised.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")
    steps: Literal["auto", "one_shot", "two_shot"] = Field(
        default="auto", description="How rows are sent between ranks; the bits are the same."
    )

    @model_validator(mode="after")
    def _coherent(self) -> AllReduceNormDescriptor:
        if self.norm == "none":
            _refuse_without_norm(self)
        if self.eps < 0:
            raise contradiction("eps", "0 or more", self.eps)
        if self.quant is None and self.full_out:
            raise contradiction("full_out", "False without quant, because out is that result", True)
        if self.quant is not None:
            _refuse_quant(self.quant, self.hidden)
        if self.residual == "row_sharded":
            if self.steps == "one_shot":
                raise contradiction("steps", "auto or two_shot, because no rank has all rows of residual", self.steps)
            if self.num_valid:
                raise contradiction("num_valid", "false with residual='row_sharded'", True)
        return self

    def normed_rows(self, rows: int) -> Descriptor[Any]:
        """The problem of the norm for the given number of rows on one rank."""
        return _epilogues.get((self.form, rows), lambda: _norm_of(self, rows))

    @property
    def form(self) -> tuple[object, ...]:
        """All fields that affect the arithmetic of a row."""
        free = ("world", "total_num_rows", "steps")
        return tuple(value for name, value in self.__dict__.items() if name not in free)

    def of_own_rows(self) -> AllReduceNormDescriptor:
        """The second step's problem on one rank: a subset of the rows, with one scale per row."""
        quant = None if self.quant is None else self.quant.model_copy(update={"scale_layout": "row"})
        return self.model_copy(update={"num_valid": False, "quant": quant})

    def quantised_rows(self, rows: int) -> Descriptor[Any] | None:
        """The problem of the quantisation of the given number of rows without a norm."""
        if self.quant is None or self.norm != "none":
            return None
        same = {name: getattr(self, name) for name in ("hidden", "dtype", "quant", "num_valid")}
        return problem("quantize", total_num_rows=rows, **same)

    @property
    def two_shot(self) -> bool:
        """Whether each row is computed on only one rank."""
        if self.steps != "auto" or self.world == 1:
            return self.steps == "two_shot" and self.world > 1
        one, two = self._received
        return self.residual == "row_sharded" or one - two > SECOND_STEP_BYTES

    @property
    def _received(self) -> tuple[int, int]:
        """Bytes that a rank receives with one step, and with two steps."""
        others, sent = self.world - 1, self.own_rows * self._row_bytes
        return others * self.total_num_rows * self._row_bytes, others * (sent + self._result_bytes)

    @property
    def _result_bytes(self) -> int:
        """Bytes of results of one rank."""
        return nbytes([spec for name, spec in tensors_of(self, self.own_rows).items() if self.travels(name, spec)])

    @property
    def _row_bytes(self) -> int:
        return self.hidden * ITEMSIZE[self.dtype]

    @property
    def own_rows(self) -> int:
        """The largest number of rows of a rank."""
        return -(-self.total_num_rows // self.world)

    @property
    def symmetric_size(self) -> int:
        if not self.two_shot:
            return arena(self.world, self.total_num_rows * self._row_bytes)
        return arena(self.world, self.own_rows * self._row_bytes) + arena(self.world, self._result_bytes)

    def travels(self, name: str, spec: TensorSpec) -> bool:
        """Whether an output is sent to all ranks in a second step."""
        return spec.written and (name != "residual" or self.residual == "replicated")

    def operands(self) -> dict[str, TensorSpec]:
        found = tensors_of(self, self.total_num_rows)
        if self.residual == "row_sharded":
            places = Dim("ceil(total_num_rows/world)", self.own_rows)
            found["residual"] = found["residual"]._replace(shape=(places, found["residual"].shape[1]))
        return found


def tensors_of(d: AllReduceNormDescriptor, rows: int) -> dict[str, TensorSpec]:
    """The operands of a call with the given number of rows, all on this rank."""
    counted, hidden = Dim("total_num_rows", rows), Dim("hidden", d.hidden)
    valid = "num_valid" if d.num_valid else ""
    row = TensorSpec((counted, hidden), d.dtype, valid_rows=valid)
    column = TensorSpec((hidden,), d.weight_dtype or d.dtype, layout="contiguous")
    made = row._replace(role="out")
    found = {"x": row} | ({"weight": column} if d.weight != "none" else {}) | ({"bias": column} if d.bias else {})
    found |= {"residual": row._replace(role="inout")} if d.residual != "none" else {}
    found |= {"out": made if d.quant is None else made._replace(dtype=d.quant.dtype)}
    found |= {"full_out": made} if d.full_out else {}
    if d.quant is not None and d.quant.scale != "none":
        found["scale"] = _scale_of(d.quant, (counted, hidden), valid)
    return found | ({"num_valid": num_valid_spec(rows)} if d.num_valid else {})


def _scale_of(quant: Quant, row: tuple[Dim, Dim], valid: str) -> TensorSpec:
    size, rows, groups = ITEMSIZE[quant.scale_dtype], row[0], Dim("hidden / group", (row[1].size or 0) // quant.group)
    if quant.scale == "static":
        return TensorSpec((Dim("1", 1),), quant.scale_dtype, layout="contiguous", alignment=size)
    lying = (rows,) if quant.scale == "token" else (rows, groups)
    if quant.scale_layout != "row":
        lying = (groups, Dim("total_num_rows", padded(rows.size or 0, quant)))
    axis = int(quant.scale_layout != "row")
    return TensorSpec(lying, quant.scale_dtype, "out", "strided", size, valid_rows=valid, valid_axis=axis)


def _refuse_quant(quant: Quant, hidden: int) -> None:
    if quant.scale in ("tensor", "block"):
        hint = "Quantise full rows with a descriptor of their own."
        raise contradiction(
            "quant.scale", "none, static, token or group, because rows are processed separately", quant.scale, hint
        )
    if quant.scale == "group" and hidden % quant.group:
        raise contradiction("quant.group", f"a divisor of hidden={hidden}", quant.group)


def _refuse_without_norm(d: AllReduceNormDescriptor) -> None:
    for field, value in (("weight", "none"), ("bias", False)):
        if getattr(d, field) != value:
            raise contradiction(field, f"{value} with norm='none'", getattr(d, field))
    if d.residual_sum != "f32" or d.normed != "f32":
        raise contradiction("norm", "rms or layer, because residual_sum and normed describe a norm", d.norm)


def _norm_of(d: AllReduceNormDescriptor, rows: int) -> Descriptor[Any]:
    same = (
        "hidden",
        "dtype",
        "weight",
        "weight_dtype",
        "bias",
        "eps",
        "residual_sum",
        "normed",
        "quant",
        "full_out",
        "num_valid",
    )
    return problem(
        "norm",
        kind="rms" if d.norm == "none" else d.norm,
        total_num_rows=rows,
        residual=d.residual != "none",
        **{name: getattr(d, name) for name in same},
    )


class AllReduceNormPlan(Plan[AllReduceNormArgs]):
    """A sum over ranks with residual, norm and quantisation."""


EXAMPLES = (
    AllReduceNormDescriptor(world=1, total_num_rows=7, hidden=1024, dtype="bf16", residual="replicated"),
    AllReduceNormDescriptor(
        world=1,
        total_num_rows=5,
        hidden=384,
        dtype="f16",
        norm="layer",
        bias=True,
        residual="replicated",
        quant=Quant(scale_layout="column_padded4"),
        full_out=True,
        num_valid=True,
    ),
    AllReduceNormDescriptor(
        world=1, total_num_rows=3, hidden=65, dtype="bf16", norm="none", weight="none", quant=Quant(dtype="i8", scale="token")
    ),
    AllReduceNormDescriptor(
        world=1, total_num_rows=3, hidden=63, dtype="f32", norm="none", weight="none", residual="row_sharded"
    ),
)
