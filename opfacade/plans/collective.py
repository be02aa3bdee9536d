"""Ops over several ranks: plain collectives, sums followed by a norm, the merge of attention over a sharded cache, and
log-probabilities over a sharded vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.joined import Joined, JoinedArgs
from opfacade.core.model import Count, Integer, Size, contradiction
from opfacade.core.operands import Contents, Dim, TensorSpec, dims_of, index_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._collective import all_reduce_norm as _all_reduce_norm
from opfacade.plans._collective import sample_across as _sample_across
from opfacade.plans._collective.all_reduce_norm import AllReduceNormArgs as AllReduceNormArgs
from opfacade.plans._collective.all_reduce_norm import AllReduceNormDescriptor, AllReduceNormPlan
from opfacade.plans._collective.sample_across import SampleAcrossArgs as SampleAcrossArgs
from opfacade.plans._collective.sample_across import SampleAcrossDescriptor, SampleAcrossPlan
from opfacade.plans._world import WORLD, World, arena

__all__ = [
    "AllReduceNormArgs", "AllReduceNormDescriptor", "AllReduceNormPlan",
    "CollectiveArgs", "CollectiveDescriptor", "CollectivePlan",
    "LogprobAcrossArgs", "LogprobAcrossDescriptor", "LogprobAcrossPlan",
    "MergeAcrossArgs", "MergeAcrossDescriptor", "MergeAcrossPlan",
    "SampleAcrossArgs", "SampleAcrossDescriptor", "SampleAcrossPlan",
]  # fmt: skip

if TYPE_CHECKING:
    from torch import Tensor

DType = Literal["f32", "bf16", "f16"]
Counts = Annotated[tuple[Count, ...], Field(min_length=1, max_length=72, strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveArgs(JoinedArgs):
    """The tensors of one plain collective, and the group."""

    group: Joined | None = operand("the group of ranks that make this call; not needed if world is 1")
    x: Tensor = operand("[rows of x, width] in dtype; all_gather: the first counts[rank] rows are sent")
    out: Tensor = operand("written: [rows of out, width] in dtype; reduce_scatter: the first counts[rank] rows")


class CollectiveDescriptor(Descriptor[CollectiveArgs]):
    """A plain collective of rows; each rank may have a different number of rows.

    all_gather: out contains the rows of all ranks, in the order of ranks. all_reduce: out is the sum of x over all ranks.
    reduce_scatter: x contains rows for every rank, in the order of ranks, and out is the sum of the rows for this rank.
    all_to_all: x is divided in the same way, and out has counts[rank] rows from each rank, with space for the largest count.
    Sums are added in f32, in the order of ranks, and rounded once, so they are the same on all ranks and in every run. The
    shapes are the same on all ranks: if a rank has fewer rows, the remaining rows are neither read nor written.
    """

    op: Literal["collective"] = Field(default="collective", description="The operator.")
    category: ClassVar[str] = "collective"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "rank-sum-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"width"})
    world: World = WORLD
    kind: Literal["all_gather", "all_reduce", "reduce_scatter", "all_to_all"] = Field(description="Which collective.")
    counts: Counts = Field(description="Rows of each rank; for all_reduce, every rank has the sum of these.")
    width: Size = Field(description="Elements of a row.")
    dtype: DType = Field(description="Element type of x and out.")

    @model_validator(mode="after")
    def _coherent(self) -> CollectiveDescriptor:
        if len(self.counts) != self.world:
            raise contradiction("counts", f"a number for each of the {self.world} ranks", self.counts)
        return self

    @property
    def adds(self) -> bool:
        return self.kind in ("all_reduce", "reduce_scatter")

    @property
    def symmetric_size(self) -> int:
        return arena(self.world, max(self.counts) * self.width * ITEMSIZE[self.dtype])

    def operands(self) -> dict[str, TensorSpec]:
        total, most = Dim("sum(counts)", sum(self.counts)), Dim("max(counts)", max(self.counts))
        places = Dim("world*max(counts)", self.world * max(self.counts))
        rows = {
            "all_gather": (most, total),
            "all_reduce": (total, total),
            "reduce_scatter": (total, most),
            "all_to_all": (total, places),
        }[self.kind]
        width = Dim("width", self.width)
        return {"x": TensorSpec((rows[0], width), self.dtype), "out": TensorSpec((rows[1], width), self.dtype, "out")}


class CollectivePlan(Plan[CollectiveArgs]):
    """A plain collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeAcrossArgs(JoinedArgs):
    """The tensors of one merge over ranks, and the group."""

    group: Joined | None = operand("the group of ranks that make this call; not needed if world is 1")
    o_part: Tensor = operand("[states, total_num_rows, num_heads, head_dim] in dtype: this rank's partial results")
    lse_part: Tensor = operand("f32 [states, total_num_rows, num_heads]: their log-sum-exps; -inf marks an empty state")
    sinks: Tensor | None = operand("f32 [num_heads], with `sinks`: a logit per head, added once to the denominator")
    o: Tensor = operand("written: [total_num_rows, heads that this rank keeps, head_dim] in out_dtype")
    lse: Tensor = operand("written: f32 [total_num_rows, heads that this rank keeps]")


class MergeAcrossDescriptor(Descriptor[MergeAcrossArgs]):
    """o = sum exp(lse_s - lse) o_s over the states of all ranks: attention over a cache whose keys are sharded.

    Each rank passes the results of attention over its own keys for all heads. A state with lse = -inf is empty, and its o is
    not read; if all states are empty, o is 0 and lse is -inf, or the sink. The order of states is fixed: state 0 of every rank,
    then state 1 of every rank, and so on. So if each state is a fixed chunk of keys, and ranks have the chunks in turn
    (`KvShard` with the chunk as interleave), the bits do not depend on the number of ranks. If a rank has fewer states, pass
    empty states.
    """

    op: Literal["merge_across"] = Field(default="merge_across", description="The operator.")
    category: ClassVar[str] = "collective"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "merge-across-f64", "merge-across-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"states", "total_num_rows"})
    world: World = WORLD
    states: Size = Field(default=1, description="Partial results of each rank.")
    total_num_rows: Count = Field(description="Query rows, the same on all ranks.")
    num_heads: Size = Field(description="Query heads of all ranks.")
    head_dim: Size = Field(description="Elements of a head.")
    dtype: DType = Field(description="Element type of o_part.")
    out_dtype: DType | None = Field(default=None, description="Element type of o; null: dtype.")
    exchange_dtype: DType | None = Field(default=None, description="Element type in which o_part is sent; null: dtype.")
    scatter: Literal["none", "heads"] = Field(
        default="none",
        description='"none": each rank gets all heads; "heads": rank r gets num_heads / world heads, in order of ranks.',
    )
    sinks: bool = Field(
        default=False, description="Whether heads have sinks; the attention plans of the shards must then have none."
    )

    @model_validator(mode="after")
    def _coherent(self) -> MergeAcrossDescriptor:
        if self.scatter == "heads" and self.num_heads % self.world:
            raise contradiction("num_heads", f"a multiple of world={self.world} with scatter='heads'", self.num_heads)
        return self

    @property
    def kept_heads(self) -> int:
        """Heads of o on each rank."""
        return self.num_heads // self.world if self.scatter == "heads" else self.num_heads

    @property
    def symmetric_size(self) -> int:
        heads = self.states * self.total_num_rows * self.kept_heads
        return arena(self.world, heads * (self.head_dim * ITEMSIZE[self.exchange_dtype or self.dtype] + 4))

    def operands(self) -> dict[str, TensorSpec]:
        states, rows, heads, dim = dims_of(self, "states", "total_num_rows", "num_heads", "head_dim")
        kept = Dim("kept_heads", self.kept_heads)
        found = {
            "o_part": TensorSpec((states, rows, heads, dim), self.dtype, contents=Contents(marked_by="lse_part")),
            "lse_part": TensorSpec((states, rows, heads), "f32", alignment=4, contents=Contents(finite=False)),
        }
        if self.sinks:
            found["sinks"] = TensorSpec((heads,), "f32", layout="contiguous", alignment=4)
        found["o"] = TensorSpec((rows, kept, dim), self.out_dtype or self.dtype, "out")
        found["lse"] = TensorSpec((rows, kept), "f32", "out", alignment=4)
        return found


class MergeAcrossPlan(Plan[MergeAcrossArgs]):
    """Merging attention over the shards of a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobAcrossArgs(JoinedArgs):
    """The tensors of one call, and the group."""

    group: Joined | None = operand("the group of ranks that make this call; not needed if world is 1")
    logits: Tensor = operand("[total_num_rows, shard] in dtype: columns of this rank's tokens")
    label: Tensor = operand("i32 [total_num_rows]: a token of the whole vocabulary for each row, the same on all ranks")
    out: Tensor = operand("written: f32 [total_num_rows]: the log-probability of label, or the loss")
    lse: Tensor = operand("written: f32 [total_num_rows]: log of the sum of exp over the whole vocabulary")


class LogprobAcrossDescriptor(Descriptor[LogprobAcrossArgs]):
    """log softmax(logits)[label] of rows whose vocabulary is sharded; `loss` gives its negative, the cross entropy.

    Rank r has the tokens from r * shard on; columns from vocab on are padding and are not read. Sums are f64, over tiles of
    `tile` tokens. Ranks exchange only the largest logit and the sum of each tile, and add tiles in the order of tokens. So if
    tile divides shard, the bits do not depend on the number of ranks. A label outside the vocabulary, such as -100, gives 0.
    """

    op: Literal["logprob_across"] = Field(default="logprob_across", description="The operator.")
    category: ClassVar[str] = "collective"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "logprob-f64")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "vocab", "shard"})
    world: World = WORLD
    total_num_rows: Count = Field(description="Rows.")
    vocab: Size = Field(description="Tokens of the whole vocabulary.")
    shard: Size = Field(description="Columns of each rank.")
    dtype: DType = Field(description="Element type of the logits.")
    loss: bool = Field(default=False, description="Whether out is the cross entropy, the negative log-probability.")
    tile: Integer = Field(
        default=512,
        ge=1,
        description="Number of tokens whose terms are added first; the sums of tiles are then added in order.",
    )

    @model_validator(mode="after")
    def _coherent(self) -> LogprobAcrossDescriptor:
        if not (self.world - 1) * self.shard < self.vocab <= self.world * self.shard:
            allowed = (
                f"a number of columns for which {self.world} ranks have all {self.vocab} tokens and no rank is without tokens"
            )
            raise contradiction("shard", allowed, self.shard)
        return self

    def without_sizes(self) -> tuple[object, ...]:
        """Includes whether tiles end at the ends of shards: the bits then do not depend on the number of ranks, and the SKU
        states this."""
        return (*super().without_sizes(), self.shard % self.tile == 0)

    @property
    def tiles(self) -> int:
        """Number of tiles per rank."""
        return -(-self.shard // self.tile)

    @property
    def symmetric_size(self) -> int:
        return arena(self.world, self.total_num_rows * (self.tiles * 16 + 8))

    def operands(self) -> dict[str, TensorSpec]:
        rows, shard = dims_of(self, "total_num_rows", "shard")
        out = TensorSpec((rows,), "f32", "out", alignment=4)
        logits = TensorSpec((rows, shard), self.dtype, contents=Contents(finite=False))
        return {"logits": logits, "label": index_spec(rows), "out": out, "lse": out}


class LogprobAcrossPlan(Plan[LogprobAcrossArgs]):
    """Log-probabilities over a sharded vocabulary."""


EXAMPLES = (
    CollectiveDescriptor(world=1, kind="all_gather", counts=(7,), width=100, dtype="bf16"),
    CollectiveDescriptor(world=1, kind="all_reduce", counts=(5,), width=63, dtype="f16"),
    MergeAcrossDescriptor(world=1, states=3, total_num_rows=7, num_heads=6, head_dim=64, dtype="f32", out_dtype="bf16"),
    MergeAcrossDescriptor(world=1, total_num_rows=5, num_heads=3, head_dim=65, dtype="f16", sinks=True, scatter="heads"),
    LogprobAcrossDescriptor(world=1, total_num_rows=7, vocab=1000, shard=1003, dtype="bf16"),
    LogprobAcrossDescriptor(world=1, total_num_rows=3, vocab=65, shard=65, dtype="f32", loss=True, tile=16),
    *_all_reduce_norm.EXAMPLES,
    *_sample_across.EXAMPLES,
)
