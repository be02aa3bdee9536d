"""KernelSku, the identity of one compiled specialisation, and PrecisionGuarantee, what it promises."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import AfterValidator, Field, model_validator

from opfacade.model import Model, Real, Version

DType = Literal["f16", "bf16", "f32", "f8_e4m3", "f8_e5m2"]
ITEMSIZE: dict[str, int] = {"f16": 2, "bf16": 2, "f32": 4, "f8_e4m3": 1, "f8_e5m2": 1, "i32": 4, "u8": 1}

# Unit roundoff and half the smallest subnormal of the storage formats.
ROUNDOFF = {"f32": 2.0**-24, "f16": 2.0**-11, "bf16": 2.0**-8, "f8_e4m3": 2.0**-4, "f8_e5m2": 2.0**-3}
UNDERFLOW = {"f32": 2.0**-150, "f16": 2.0**-25, "bf16": 2.0**-134, "f8_e4m3": 2.0**-10, "f8_e5m2": 2.0**-17}

# From strictest to loosest; Preference.require.max_error_model is a position in this list.
ErrorModelId = Literal[
    "exact", "append-f32", "attention-f64", "attention-f32", "attention-mma16", "attention-mma8", "merge-f32"
]  # fmt: skip
ERROR_MODELS: tuple[ErrorModelId, ...] = get_args(ErrorModelId)

_PARTS = 9  # of a SKU id
Word = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.+-]{0,63}$")]


def _no_literal(value: bool | int | str) -> bool | int | str:
    """A string that reads like a bool would make two specs print alike."""
    if value in ("true", "false") and isinstance(value, str):
        raise ValueError("a spec value that is text must not read like a bool")
    return value


SpecValue = Annotated[bool | int | Word, AfterValidator(_no_literal)]


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


class KernelSku(Model):
    """Identity of one compiled specialisation: a different binary or a different promise is a different id.

    Nothing here depends on the size of a call: no batch size, no tensor, no address. `spec` holds the compile-time
    facts as sorted (name, value) pairs; `dtypes` the element types by operand.
    """

    __slots__ = ("_text",)
    _text: ClassVar[str]

    schema_version: Version = 1
    category: Word
    op: Word
    backend: Word
    arch: Word
    impl: Word
    revision: Annotated[int, Field(ge=1)]
    dtypes: Annotated[tuple[tuple[Word, Word], ...], AfterValidator(_sorted_unique)]
    layout: Word
    spec: Annotated[tuple[tuple[Word, SpecValue], ...], AfterValidator(_sorted_unique)] = ()
    precision_guarantee: PrecisionGuarantee

    @property
    def id(self) -> str:
        """Canonical text: a stable key for telemetry, tuning and pins.

        Injective: equal ids mean the same facts and the same promise; only the list of evidence may differ.
        """
        try:
            return self._text
        except AttributeError:  # not asked for yet: a slot is no field, and a copy begins without it
            object.__setattr__(self, "_text", self._made())
            return self._text

    def _made(self) -> str:
        return "/".join(
            (
                self.category,
                self.op,
                self.backend,
                self.arch,
                f"{self.impl}@{self.revision}",
                _pairs(self.dtypes),
                self.layout,
                _pairs(self.spec) or "-",
                f"g.{_digest(self.precision_guarantee)[:16]}",
            )
        )

    def __str__(self) -> str:
        return self.id


@lru_cache(maxsize=4096)
def _digest(guarantee: PrecisionGuarantee) -> str:
    # What is promised, not which tests show it: renaming a test must not orphan a pin.
    return guarantee.model_copy(update={"evidence": ()}).digest()


def _pairs(pairs: tuple[tuple[str, bool | int | str], ...]) -> str:
    return ",".join(f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in pairs)


def is_sku_id(text: str) -> bool:
    """Whether a text has the form of a SKU id: nine parts, of which the fifth names a revision."""
    parts = text.split("/")
    return len(parts) == _PARTS and all(parts) and "@" in parts[4] and parts[-1].startswith("g.")
