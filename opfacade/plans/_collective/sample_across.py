"""One token for each row of logits, with a vocabulary that is sharded over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.joined import Joined, JoinedArgs
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import Contents, Dim, TensorSpec, dims_of, num_valid_spec
from opfacade.core.tensor_lists import operand
from opfacade.plan import Plan
from opfacade.plans._collective.family import CollectiveOp, DType
from opfacade.plans._sampling.specs import check_masses
from opfacade.plans._world import WORLD, World, arena

if TYPE_CHECKING:
    from torch import Tensor

MOST_LISTED = 128  # maximum number of tokens per row in the list that a rank sends
BINS = 256
_CONTROLS = {"temperature": "f32", "top_k": "i32", "top_p": "f32", "min_p": "f32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAcrossArgs(JoinedArgs):
    """The tensors of one draw, and the group. All tensors except logits are the same on all ranks."""

    group: Joined | None = operand("the group of ranks that make this call; not needed if world is 1")
    logits: Tensor = operand("[total_num_rows, shard] in dtype: columns of this rank's tokens")
    temperature: Tensor | None = operand("f32 [total_num_rows]; at most 0 is greedy; with temperature")
    top_k: Tensor | None = operand("i32 [total_num_rows]; at most 0, or at least vocab, is off; with top_k")
    top_p: Tensor | None = operand("f32 [total_num_rows]; at least 1 is off, at most 0 keeps one token; with top_p")
    min_p: Tensor | None = operand("f32 [total_num_rows]; at most 0 is off; with min_p")
    seed: Tensor = operand("i64 [total_num_rows], the seed of each row's request")
    offset: Tensor = operand("i64 [total_num_rows], the position of the token in its request")
    num_valid: Tensor | None = operand(
        "int32 [1]: the number of valid rows; later ones are neither read nor written; with `num_valid`"
    )
    token: Tensor = operand("written: i32 [total_num_rows]; -1 for a row without candidates")
    valid: Tensor = operand("written: u8 [total_num_rows], 1 if the row has a candidate, else 0")


class SampleAcrossDescriptor(CollectiveOp[SampleAcrossArgs]):
    """The token that `sample` draws from the logits of all ranks; all ranks get the same token.

    Rank r has the tokens from r * shard on; columns from vocab on are padding and are not read. Filters, order, noise and equal
    logits are treated as by `sample`. Masses are integers, so the order of their addition and the number of ranks do not
    matter. Logits are not exchanged. Without filters, a rank sends its best token of each row. With max_top_k up to 128, it
    sends a list of this length, and all ranks compute the same result; this takes one exchange, unless top_p refers to all
    candidates. Other filters exchange the largest logit, four sums of 256 bins for each of top_k and top_p, and the best
    tokens. To adjust the logits, run `adjust_logits` on each shard first.
    """

    op: Literal["sample_across"] = Field(default="sample_across", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "race-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "vocab", "shard", "max_top_k", "stream"})
    world: World = WORLD
    total_num_rows: Count = Field(description="Tokens to draw.")
    vocab: Size = Field(description="Tokens of the whole vocabulary.")
    shard: Size = Field(description="Columns of each rank.")
    dtype: DType = Field(default="f32", description="Element type of the logits.")
    temperature: bool = Field(default=True, description="Whether rows have a temperature; otherwise it is 1.")
    top_k: bool = Field(default=False, description="Whether rows have a top_k.")
    top_p: bool = Field(default=False, description="Whether rows have a top_p.")
    min_p: bool = Field(default=False, description="Whether rows have a min_p.")
    order: Literal["top_k_first", "joint"] = Field(
        default="top_k_first",
        description='Tokens whose mass top_p refers to: "top_k_first": those that top_k keeps; "joint": all candidates.',
    )
    max_top_k: Size | None = Field(default=None, description="Largest number of tokens that any row keeps.")
    num_valid: bool = Field(default=False, description="Whether the operand num_valid limits the number of rows.")
    stream: int = Field(
        default=0, ge=0, le=2**32 - 1, description="Random stream: 0 for a target model, 1 + i for draft model i."
    )

    @model_validator(mode="after")
    def _coherent(self) -> SampleAcrossDescriptor:
        if not (self.world - 1) * self.shard < self.vocab <= self.world * self.shard:
            allowed = (
                f"a number of columns for which {self.world} ranks have all {self.vocab} tokens and no rank is without tokens"
            )
            raise contradiction("shard", allowed, self.shard)
        if self.max_top_k is not None and not self.top_k:
            raise contradiction("max_top_k", "None without top_k", self.max_top_k, "Set top_k=True.")
        if self.top_p:
            check_masses(self.vocab)
        return self

    @property
    def filters(self) -> bool:
        """Whether a filter may remove candidates of a row."""
        return self.top_k or self.top_p or self.min_p

    @property
    def listed(self) -> int:
        """The number of tokens per row in the list that a rank sends; 0: no list is sent."""
        if self.max_top_k is None or self.max_top_k > MOST_LISTED or (self.top_p and self.order == "joint"):
            return 0
        return min(self.max_top_k, self.shard)

    @property
    def symmetric_size(self) -> int:
        each = 8 * self.listed or (8 * BINS if self.top_k or self.top_p else 16)
        return arena(self.world, self.total_num_rows * each)

    def operands(self) -> dict[str, TensorSpec]:
        rows, shard = dims_of(self, "total_num_rows", "shard")
        found = {"logits": TensorSpec((rows, shard), self.dtype, valid_rows=self._counter, contents=Contents(finite=False))}
        found |= {name: self._each(rows, dtype) for name, dtype in _CONTROLS.items() if getattr(self, name)}
        if self.temperature:
            found["temperature"] = found["temperature"]._replace(contents=Contents(least=0.0))
        found |= {name: self._each(rows, "i64") for name in ("seed", "offset")}
        found |= {"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {}
        made = {"token": self._each(rows, "i32"), "valid": self._each(rows, "u8")}
        return found | {name: spec._replace(role="out") for name, spec in made.items()}

    @property
    def _counter(self) -> str:
        return "num_valid" if self.num_valid else ""

    def _each(self, rows: Dim, dtype: str) -> TensorSpec:
        return TensorSpec((rows,), dtype, "in", "contiguous", ITEMSIZE[dtype], valid_rows=self._counter)


class SampleAcrossPlan(Plan[SampleAcrossArgs]):
    """Tokens of rows over a sharded vocabulary."""


EXAMPLES = (
    SampleAcrossDescriptor(world=1, total_num_rows=7, vocab=1000, shard=1003, dtype="bf16"),
    SampleAcrossDescriptor(world=1, total_num_rows=5, vocab=515, shard=515, top_k=True, max_top_k=40, top_p=True),
    SampleAcrossDescriptor(
        world=1,
        total_num_rows=3,
        vocab=63,
        shard=65,
        dtype="f16",
        top_k=True,
        top_p=True,
        min_p=True,
        order="joint",
        num_valid=True,
    ),
)
