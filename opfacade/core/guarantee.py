"""PrecisionGuarantee: the numerical promise of a kernel and its error model."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from opfacade.core.model import Model, Real

# From strictest to loosest; Preference.require.max_error_model is a position in this list.
ErrorModelId = Literal[
    "exact", "append-f32", "attention-f64", "attention-f32", "attention-mma16", "attention-mma8", "merge-f32"
]  # fmt: skip
ERROR_MODELS: tuple[ErrorModelId, ...] = get_args(ErrorModelId)
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]{0,63}$")]


def _sorted_unique(pairs: tuple[tuple[str, object], ...]) -> tuple[tuple[str, object], ...]:
    names = [name for name, _ in pairs]
    if names != sorted(set(names)):
        raise ValueError("names must be sorted and unique")
    return pairs


class ErrorModel(Model):
    """Which error bound holds and with which constants.

    The bound is the per-element one of `opfacade.testing.numerics`; `id` names the formula, `constants` its inputs,
    such as the unit roundoffs of the two products, so that a user can recompute it.
    """

    id: ErrorModelId
    constants: Annotated[tuple[tuple[Word, Real], ...], AfterValidator(_sorted_unique)] = ()


class PrecisionGuarantee(Model):
    """What a kernel promises about its numbers, under which conditions, and which tests hold it to that.

    deterministic: the same inputs give the same bits, run to run, in one process.
    bit_stable_on_same_hardware: also across processes, streams, allocations and workspace contents.
    batch_invariant: "composition" means that a request's bits do not depend on the rest of the batch.
    Without evidence no flag may be set.
    """

    math_precision: str
    accumulator: Literal["f32", "f64", "none"]
    deterministic: bool = False
    bit_stable_on_same_hardware: bool = False
    batch_invariant: Literal["none", "composition"] = "none"
    lse_base: Literal["e"] = "e"
    error_model: ErrorModel
    conditions: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _honest(self) -> PrecisionGuarantee:
        claims = self.deterministic or self.bit_stable_on_same_hardware or self.batch_invariant != "none"
        if claims and not self.evidence:
            raise ValueError("a guarantee without evidence must not set a flag")
        if self.bit_stable_on_same_hardware and not self.deterministic:
            raise ValueError("bit_stable_on_same_hardware implies deterministic")
        return self
