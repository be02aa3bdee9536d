"""PrecisionGuarantee: the numerical promise of a kernel and its error model."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from opfacade.core.dtypes import DType
from opfacade.core.model import Model, Real

EXACT = "exact"  # the error model of a copy: no bound is tighter
RankInvariant = Literal["none", "ranks", "world"]
BoundedWait = Literal["none", "abort", "kernel"]
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]{0,63}$")]


def _sorted_unique(pairs: tuple[tuple[str, object], ...]) -> tuple[tuple[str, object], ...]:
    names = [name for name, _ in pairs]
    if names != sorted(set(names)):
        raise ValueError("names must be sorted and unique")
    return pairs


class ErrorModel(Model):
    """The error bound that holds, and its constants.

    The bound is the per-element one of `opfacade.testing.numerics`; `id` names the formula, `constants` its inputs,
    such as the unit roundoffs of the two products, so that a user can recompute it. The set of ids is open: the descriptors of
    a family list their ids in `error_models`, strictest first.
    """

    id: Word
    constants: Annotated[tuple[tuple[Word, Real], ...], AfterValidator(_sorted_unique)] = ()


class Condition(Model):
    """A condition under which a guarantee holds. `id` is part of the guarantee and of SKU ids; `text`, a sentence for readers,
    is not."""

    id: Word
    text: str


class PrecisionGuarantee(Model):
    """The numerical guarantee of a kernel, its conditions, and the tests that are its evidence.

    math_precision: names the type of products and any rounding before that of the result. accumulator: the type of sums; "none"
    if nothing is summed.
    deterministic: the same inputs give the same bits in every run in one process.
    bit_stable_on_same_hardware: also across processes, streams, allocations and workspace contents.
    batch_invariant: "composition" means that a request's bits do not depend on the rest of the batch.
    rank_invariant: "ranks": all ranks of a group get the same bits; "world": in addition, the bits do not depend on the number
    of ranks. bounded_wait: how a wait for a rank ends at the deadline. "kernel": the waiting kernel checks the deadline itself,
    in replays too; "abort": the group on the host ends the wait; "none": nothing ends it, or the op waits for no rank.
    A flag may be set only with evidence.
    """

    math_precision: Word
    accumulator: DType | Literal["none"]
    deterministic: bool = False
    bit_stable_on_same_hardware: bool = False
    batch_invariant: Literal["none", "composition"] = "none"
    rank_invariant: RankInvariant = "none"
    bounded_wait: BoundedWait = "none"
    error_model: ErrorModel
    conditions: tuple[Condition, ...] = ()
    evidence: tuple[str, ...] = ()

    def promised(self) -> str:
        """The canonical JSON of the guarantee.

        It omits fields at their defaults, so that a field added later changes no SKU id. Evidence and the wording of conditions
        are not part of it.
        """
        left_out: dict[str, Any] = {"evidence": True, "conditions": {"__all__": {"text"}}}
        facts = self.model_dump(mode="json", exclude_defaults=True, exclude=left_out)
        return json.dumps(facts, sort_keys=True, separators=(",", ":"))

    @model_validator(mode="after")
    def _honest(self) -> PrecisionGuarantee:
        invariant = {self.batch_invariant, self.rank_invariant, self.bounded_wait} != {"none"}
        claims = self.deterministic or self.bit_stable_on_same_hardware or invariant
        if claims and not self.evidence:
            raise ValueError("a guarantee without evidence must not set a flag")
        if self.bit_stable_on_same_hardware and not self.deterministic:
            raise ValueError("bit_stable_on_same_hardware implies deterministic")
        return self
