"""Filtered distributions of rows: softmax, renormalised probabilities, masked logits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Args
from opfacade.core.model import Count, Size, contradiction
from opfacade.core.operands import TensorSpec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._sampling.family import LogitsDType, SamplingOp
from opfacade.plans._sampling.specs import Rows, check_masses

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbabilitiesArgs(Args):
    """The tensors of one call. rows: total_num_rows."""

    docs: ClassVar[Mapping[str, str]] = MappingProxyType({
        "x": '[rows, vocab] in dtype: logits, or with form="renorm" probabilities, which need not add up to 1',
        "temperature": "f32 [rows]; at most 0 is 1; with temperature",
        "top_k": "i32 [rows]; at most 0, or at least vocab, is off; with top_k",
        "top_p": "f32 [rows]; at least 1 is off, at most 0 keeps the most likely token; with top_p",
        "min_p": "f32 [rows]; at most 0 is off; with min_p",
        "num_valid": "i32 [1] on the device: the number of valid rows; later ones are neither read nor written; with num_valid",
        "out": 'written: f32 [rows, vocab] probabilities; not with form="mask"',
        "masked": 'written: [rows, vocab] in dtype; with form="mask"',
    })  # fmt: skip
    x: Tensor
    temperature: Tensor | None = None
    top_k: Tensor | None = None
    top_p: Tensor | None = None
    min_p: Tensor | None = None
    num_valid: Tensor | None = None
    out: Tensor | None = None
    masked: Tensor | None = None


class ProbabilitiesDescriptor(SamplingOp[ProbabilitiesArgs]):
    """The distribution of the tokens that the filters of `sample` keep, for each row.

    softmax: x has logits; out has the probabilities of kept tokens, 0 elsewhere. renorm: the same for x with probabilities;
    those of 0 and NaN are not candidates. mask: the unchanged logits of kept tokens, -inf elsewhere. A row without candidates
    is all 0, or -inf for mask.
    """

    op: Literal["probabilities"] = Field(default="probabilities", description="The operator.")
    error_models: ClassVar[tuple[str, ...]] = ("exact", "race-f32")
    sizes: ClassVar[frozenset[str]] = frozenset({"total_num_rows", "vocab", "max_top_k"})
    total_num_rows: Count = Field(description="Rows.")
    vocab: Size = Field(description="Number of entries per row.")
    form: Literal["softmax", "renorm", "mask"] = Field(
        default="softmax", description="Whether x and out are logits or probabilities."
    )
    dtype: LogitsDType = Field(default="f32", description="Element type of x.")
    temperature: bool = Field(default=False, description="Whether rows of logits have a temperature; otherwise it is 1.")
    top_k: bool = Field(default=False, description="Whether rows have a top_k.")
    top_p: bool = Field(default=False, description="Whether rows have a top_p.")
    min_p: bool = Field(default=False, description="Whether rows have a min_p.")
    order: Literal["top_k_first", "joint"] = Field(
        default="top_k_first", description="Tokens whose mass top_p refers to, as in sample."
    )
    max_top_k: Size | None = Field(default=None, description="Largest number of tokens that any row keeps.")
    num_valid: bool = Field(default=False, description="Whether an operand on the device has the number of valid rows.")

    @model_validator(mode="after")
    def _coherent(self) -> ProbabilitiesDescriptor:
        if self.top_p or self.form != "mask":
            check_masses(self.vocab)
        if self.form == "renorm" and self.temperature:
            raise contradiction("temperature", "False for probabilities", self.temperature)
        if self.max_top_k is not None and not self.top_k:
            raise contradiction("max_top_k", "None without top_k", self.max_top_k, "Set top_k=True.")
        return self

    def operands(self) -> dict[str, TensorSpec]:
        rows = Rows(self)
        found = {"x": rows.table(self.dtype)}
        controls = {"temperature": "f32", "top_k": "i32", "top_p": "f32", "min_p": "f32"}
        found |= {name: rows.each(dtype) for name, dtype in controls.items() if getattr(self, name)}
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.total_num_rows)
        masks = self.form == "mask"
        return found | {self.output: rows.table(self.dtype if masks else "f32", role="out")}

    @property
    def output(self) -> str:
        """The name of the operand that is written."""
        return "masked" if self.form == "mask" else "out"


class ProbabilitiesPlan(Plan[ProbabilitiesArgs]):
    """Filtered distributions of rows."""
