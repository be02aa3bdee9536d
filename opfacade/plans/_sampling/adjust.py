"""Adjustment of logits in place: the first part of sampling as a separate op."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, Size, SoftCap, contradiction
from opfacade.core.operands import TensorSpec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._sampling.args import ADJUSTMENT_DOCS
from opfacade.plans._sampling.family import LogitsDType, SamplingOp
from opfacade.plans._sampling.specs import Rows, adjustments

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class AdjustLogitsArgs(Args):
    """The tensors of one adjustment. rows: total_num_rows."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "logits": "[rows, vocab] in dtype, overwritten",
        "temperature": "f32 [rows]; a row with at most 0 is not changed; with temperature",
        **ADJUSTMENT_DOCS,
        "num_valid": "i32 [1] on the device: the number of valid rows; later ones are neither read nor written; with num_valid",
    })  # fmt: skip
    logits: Tensor
    temperature: Tensor | None = None
    bitmask: Tensor | None = None
    bias: Tensor | None = None
    bias_tokens: Tensor | None = None
    bias_values: Tensor | None = None
    prompt_mask: Tensor | None = None
    output_counts: Tensor | None = None
    repetition: Tensor | None = None
    frequency: Tensor | None = None
    presence: Tensor | None = None
    num_valid: Tensor | None = None


class AdjustLogitsDescriptor(SamplingOp[AdjustLogitsArgs]):
    """Adjust logits as `sample` does, by the same f32 operations in the same order, rounded once to dtype.

    A token that is not a candidate gets -inf; this includes NaN.
    """

    op: Literal["adjust_logits"] = Field(default="adjust_logits", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "capped-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "vocab", "num_biases"})
    off: ClassVar[Mapping[str, object]] = MappingProxyType({"soft_cap": 0.0})
    tuning_flags: ClassVar[frozenset[str]] = frozenset({"soft_cap"})
    total_num_rows: Count = Field(description="Rows.")
    vocab: Size = Field(description="Number of logits per row.")
    dtype: LogitsDType = Field(default="f32", description="Element type of the logits.")
    temperature: bool = Field(default=False, description="Whether rows have a temperature.")
    penalties: bool = Field(default=False, description="Whether rows have repetition, frequency and presence penalties.")
    bias: Literal["none", "dense", "sparse"] = Field(default="none", description="Values added to the logits, as in sample.")
    num_biases: Count = Field(default=0, description="Number of sparse bias entries per row.")
    bitmask: bool = Field(default=False, description="Whether rows have a bit per token that marks candidates.")
    soft_cap: SoftCap = Field(default=0.0, description="Replaces a logit a by soft_cap * tanh(a / soft_cap); 0: off.")
    num_valid: bool = Field(default=False, description="Whether an operand on the device has the number of valid rows.")

    @model_validator(mode="after")
    def _coherent(self) -> AdjustLogitsDescriptor:
        if (self.bias == "sparse") != (self.num_biases > 0):
            raise contradiction("num_biases", '1 or more with bias="sparse", and 0 otherwise', self.num_biases)
        return self

    def operands(self) -> dict[str, TensorSpec]:
        rows = Rows(self)
        found = {"logits": rows.table(self.dtype, role="inout")}
        if self.temperature:
            found["temperature"] = rows.each("f32")
        found |= adjustments(self, rows)
        return found | ({"num_valid": num_valid_spec(self.total_num_rows)} if self.num_valid else {})


class AdjustLogitsPlan(Plan[AdjustLogitsArgs]):
    """Adjustment of logits in place."""
