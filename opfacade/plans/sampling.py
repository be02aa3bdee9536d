"""Sampling: from logits to a token in one launch. docs/ops/sampling.md describes the semantics."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from opfacade.core.descriptor import Descriptor
from opfacade.core.model import Count, Size, SoftCap, contradiction
from opfacade.core.operands import Contents, Dim, TensorSpec, index_spec, num_valid_spec
from opfacade.plan import Plan
from opfacade.plans._sampling.adjust import AdjustLogitsArgs as AdjustLogitsArgs
from opfacade.plans._sampling.adjust import AdjustLogitsDescriptor, AdjustLogitsPlan
from opfacade.plans._sampling.args import SampleArgs as SampleArgs
from opfacade.plans._sampling.probabilities import ProbabilitiesArgs as ProbabilitiesArgs
from opfacade.plans._sampling.probabilities import ProbabilitiesDescriptor, ProbabilitiesPlan
from opfacade.plans._sampling.specs import Rows, adjustments, check_masses
from opfacade.plans._sampling.top_k import TopKArgs as TopKArgs
from opfacade.plans._sampling.top_k import TopKDescriptor, TopKPlan
from opfacade.plans._sampling.verify import VerifyDraftsArgs as VerifyDraftsArgs
from opfacade.plans._sampling.verify import VerifyDraftsDescriptor, VerifyDraftsPlan

__all__ = [
    "AdjustLogitsArgs", "AdjustLogitsDescriptor", "AdjustLogitsPlan",
    "ProbabilitiesArgs", "ProbabilitiesDescriptor", "ProbabilitiesPlan",
    "SampleArgs", "SampleDescriptor", "SamplePlan",
    "TopKArgs", "TopKDescriptor", "TopKPlan",
    "VerifyDraftsArgs", "VerifyDraftsDescriptor", "VerifyDraftsPlan",
]  # fmt: skip

LogitsDType = Literal["f32", "bf16", "f16"]
MAX_TOP_N = 128
_LEAST = {"temperature": 0.0, "repetition": 2.0**-126}  # values that validation level full accepts


class SampleDescriptor(Descriptor[SampleArgs]):
    """Draw one token per row of logits from the filtered distribution.

    Logits are adjusted in f32 by the selected operations, in this order: bitmask, bias, repetition, frequency and presence
    penalty, soft cap, division by the temperature. NaN and -inf are not candidates; values above 2^127, and +inf, count as
    2^127. Candidates are ordered by adjusted logit, the largest first, and then by id, the lowest first.
    Filters keep a prefix of that order. top_k: the first k. top_p: the shortest prefix whose mass is at least p times the sum,
    with the mass round(2^40 exp(a - max)). min_p: candidates with a probability of at least min_p times the largest.
    Token: argmax over kept tokens of a / ln 2 - log2 E, with E from a Philox4x32-10 word of (seed; token, offset, stream); it
    does not depend on the row of the batch. A temperature of 0 takes the first candidate. Without candidates token is -1, valid
    0.
    """

    op: Literal["sample"] = Field(default="sample", description="The operator.")
    category: ClassVar[str] = "sampling"
    error_models: ClassVar[tuple[str, ...]] = ("exact", "race-f32")
    sizes: ClassVar[frozenset[str]] = frozenset(
        {"total_num_rows", "vocab", "num_logits", "num_biases", "max_top_k", "top_n", "stream"}
    )
    off: ClassVar[Mapping[str, object]] = MappingProxyType({"soft_cap": 0.0})
    tuning_flags: ClassVar[frozenset[str]] = frozenset({"soft_cap"})
    total_num_rows: Count = Field(description="Tokens to draw.")
    vocab: Size = Field(description="Number of logits per row.")
    dtype: LogitsDType = Field(default="f32", description="Element type of the logits.")
    top_k: bool = Field(default=False, description="Whether rows have a top_k.")
    top_p: bool = Field(default=False, description="Whether rows have a top_p.")
    min_p: bool = Field(default=False, description="Whether rows have a min_p.")
    order: Literal["top_k_first", "joint"] = Field(
        default="top_k_first",
        description='Tokens whose mass top_p refers to: "top_k_first": those that top_k keeps; "joint": all candidates.',
    )
    max_top_k: Size | None = Field(default=None, description="Largest number of tokens that any row keeps.")
    temperature: bool = Field(default=True, description="Whether rows have a temperature; otherwise it is 1.")
    penalties: bool = Field(default=False, description="Whether rows have repetition, frequency and presence penalties.")
    bias: Literal["none", "dense", "sparse"] = Field(
        default="none", description='Values added to the logits: "dense" for each token, "sparse" for a list of tokens.'
    )
    num_biases: Count = Field(default=0, description="Number of sparse bias entries per row.")
    bitmask: bool = Field(default=False, description="Whether rows have a bit per token that marks candidates.")
    soft_cap: SoftCap = Field(default=0.0, description="Replaces a logit a by soft_cap * tanh(a / soft_cap); 0: off.")
    indices: bool = Field(
        default=False, description="Whether each row names its row of logits, so that several rows can use the same logits."
    )
    num_logits: Count | None = Field(
        default=None, description="Number of rows of logits, with indices; by default total_num_rows."
    )
    report: Literal["none", "logprob", "top_n"] = Field(
        default="none",
        description='"logprob": log-probability and rank of the token; "top_n": also those of the top_n most likely tokens.',
    )
    top_n: int = Field(default=0, ge=0, le=MAX_TOP_N, description='Number of tokens for report="top_n", 1 to 128.')
    probs_out: Literal["none", "filtered"] = Field(
        default="none", description='"filtered": also write the distribution from which the token is drawn.'
    )
    num_valid: bool = Field(default=False, description="Whether an operand on the device has the number of valid rows.")
    stream: int = Field(
        default=0, ge=0, le=2**32 - 1, description="Random stream: 0 for a target model, 1 + i for draft model i."
    )

    @model_validator(mode="after")
    def _coherent(self) -> SampleDescriptor:
        if (self.report == "top_n") != (self.top_n > 0):
            raise contradiction("top_n", '1 or more with report="top_n", and 0 otherwise', self.top_n)
        if (self.bias == "sparse") != (self.num_biases > 0):
            raise contradiction("num_biases", '1 or more with bias="sparse", and 0 otherwise', self.num_biases)
        if self.num_logits is not None and not self.indices:
            raise contradiction("num_logits", "None without indices", self.num_logits, "Set indices=True.")
        if self.top_p or self.report != "none" or self.probs_out != "none":
            check_masses(self.vocab)
        if self.num_logits == 0 and self.total_num_rows:  # an invalid index reads row 0
            raise contradiction("num_logits", "1 or more if rows draw tokens", 0)
        if self.max_top_k is not None and not self.top_k:
            raise contradiction("max_top_k", "None without top_k", self.max_top_k, "Set top_k=True.")
        return self

    @property
    def filters(self) -> bool:
        """Whether a filter may remove candidates of a row."""
        return self.top_k or self.top_p or self.min_p

    def operands(self) -> dict[str, TensorSpec]:
        rows = Rows(self)
        logits = rows.table(self.dtype)
        found = {"logits": logits}
        if self.indices:
            count = self.total_num_rows if self.num_logits is None else self.num_logits
            found["logits"] = logits._replace(shape=(Dim("num_logits", count), rows.vocab), valid_rows="")
            found["indices"] = index_spec(rows.rows, values=(0, count), valid_rows=rows.valid)
        controls = {"temperature": "f32", "top_k": "i32", "top_p": "f32", "min_p": "f32"}
        found |= {name: rows.each(dtype) for name, dtype in controls.items() if getattr(self, name)}
        found |= {"seed": rows.each("i64"), "offset": rows.each("i64")} | adjustments(self, rows)
        found |= {name: found[name]._replace(contents=Contents(least=least)) for name, least in _LEAST.items() if name in found}
        if self.num_valid:
            found["num_valid"] = num_valid_spec(self.total_num_rows)
        return found | self._outputs(rows)

    def _outputs(self, rows: Rows) -> dict[str, TensorSpec]:
        found = {"token": rows.each("i32", "out"), "valid": rows.each("u8", "out")}
        if self.report != "none":
            found |= {"logprob": rows.each("f32", "out"), "rank": rows.each("i32", "out")}
        if self.report == "top_n":
            count = Dim("top_n", self.top_n)
            found |= {"top_tokens": rows.table("i32", count, "out"), "top_logprobs": rows.table("f32", count, "out")}
        if self.probs_out == "filtered":
            found["probs"] = rows.table("f32", role="out")
        return found


class SamplePlan(Plan[SampleArgs]):
    """One token of each row of logits."""


EXAMPLES = (
    AdjustLogitsDescriptor(total_num_rows=64, vocab=1003, dtype="bf16", penalties=True, bitmask=True, temperature=True),
    AdjustLogitsDescriptor(total_num_rows=7, vocab=515, soft_cap=30.0, bias="dense", num_valid=True),
    AdjustLogitsDescriptor(total_num_rows=5, vocab=1000, dtype="f16", bias="sparse", num_biases=9),
    ProbabilitiesDescriptor(total_num_rows=64, vocab=1003, dtype="bf16", temperature=True, top_k=True),
    ProbabilitiesDescriptor(total_num_rows=7, vocab=515, form="renorm", top_p=True, min_p=True, num_valid=True),
    ProbabilitiesDescriptor(total_num_rows=5, vocab=1000, dtype="f16", form="mask", top_k=True, top_p=True, order="joint"),
    SampleDescriptor(total_num_rows=64, vocab=4099, dtype="bf16"),
    SampleDescriptor(total_num_rows=7, vocab=1000, top_k=True, top_p=True, min_p=True, order="joint", num_valid=True),
    SampleDescriptor(
        total_num_rows=7, vocab=1003, dtype="f16", penalties=True, bias="sparse", num_biases=9, bitmask=True, soft_cap=30.0
    ),
    SampleDescriptor(
        total_num_rows=5, vocab=515, top_p=True, bias="dense", indices=True, num_logits=3, report="top_n", top_n=4
    ),
    SampleDescriptor(total_num_rows=5, vocab=2050, dtype="bf16", top_k=True, max_top_k=64, top_p=True, probs_out="filtered"),
    TopKDescriptor(total_num_rows=7, vocab=1000, k=50, dtype="bf16", num_valid=True),
    TopKDescriptor(total_num_rows=3, vocab=63, k=70),
    TopKDescriptor(total_num_rows=5, vocab=9001, k=4097, windows=True),
    VerifyDraftsDescriptor(kind="chain", batch_size=7, num_drafts=4, vocab=1000),
    VerifyDraftsDescriptor(kind="tree", batch_size=3, num_drafts=7, vocab=515, threshold_acc=0.75, threshold_single=0.5),
    VerifyDraftsDescriptor(kind="greedy", batch_size=63, num_drafts=3, vocab=1000, num_valid=True),
    VerifyDraftsDescriptor(kind="coupled", batch_size=5, num_drafts=7, vocab=1000),
)
