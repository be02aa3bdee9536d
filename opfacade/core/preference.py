"""Preference: what a caller wants of a plan beside its descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from opfacade.core.guarantee import RankInvariant, Word
from opfacade.core.model import Bytes, Model

Names = Annotated[tuple[str, ...], Field(strict=False)]  # a list is taken too


class Require(Model):
    """The least a plan must guarantee.

    max_error_model: no looser bound than this one, in the order of the descriptor's own `error_models`. A kernel whose
    model is "exact" satisfies every requirement; others are refused where it is a model that the op does not have.
    """

    deterministic: bool = Field(default=False, description="The same inputs give the same bits, run to run, in one process.")
    bit_stable_on_same_hardware: bool = Field(
        default=False, description="The same bits also across processes, streams, allocations and workspace contents."
    )
    batch_invariant: Literal["none", "composition"] = Field(
        default="none", description='"composition": the bits of a request do not depend on the rest of its batch.'
    )
    rank_invariant: RankInvariant = Field(
        default="none",
        description='"ranks": all ranks of a group get the same bits; "world": nor do they depend on the number of ranks.',
    )
    max_error_model: Word | None = Field(
        default=None, description="No looser error bound than this one, in the order of ERROR_MODELS; None is any."
    )


_SHORT: dict[str, dict[str, object]] = {
    "deterministic": {"deterministic": True},
    "bit_stable_on_same_hardware": {"bit_stable_on_same_hardware": True},
    "batch_invariant": {"batch_invariant": "composition"},
}


def _require(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value not in _SHORT:
        *names, last = map(repr, _SHORT)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}, or a Require"})
    return _SHORT[value]


class Preference(Model):
    """A caller's preferences. Every field is honoured, or `select` raises UnsupportedError with the reasons.

    backend: only this one.  forbid: backends, implementations ("mma_tile" or "cuda/mma_tile") or SKU ids never to use, of any
    op.  allow: only these SKU ids.
    max_workspace_bytes: no plan that needs more.  require: the least guarantee ("deterministic" and "batch_invariant"
    are short forms).  jit: "never" refuses to compile, at load.  pin: only this SKU id.  autotune: "use" takes
    what `opfacade tune` measured to be faster, where it has measured; `explain` says so.
    """

    elsewhere: ClassVar[Mapping[str, str]] = MappingProxyType({"sku": "pin", "exclude": "forbid"})
    backend: Literal["cuda", "reference"] | None = Field(
        default=None, description="Only candidates of this backend; None is any."
    )
    forbid: Names = Field(
        default=(), description='Backends, implementations ("mma_tile" or "cuda/mma_tile") or SKU ids never to use, of any op.'
    )
    allow: Names | None = Field(default=None, description="Only these SKU ids; None is any.")
    max_workspace_bytes: Bytes | None = Field(
        default=None, description="No plan that needs a larger workspace, in bytes; None is no limit."
    )
    require: Annotated[Require, BeforeValidator(_require)] = Field(
        default=Require(), description="The least guarantee: a Require, or the name of one of its flags."
    )
    jit: Literal["build", "never"] = Field(
        default="build", description='"never" refuses to compile when a kernel is loaded; what is chosen does not change.'
    )
    pin: str | None = Field(
        default=None,
        description="Only the candidate with this SKU id; an UnsupportedError (OPF-S012) names the nearest where none has it.",
    )
    autotune: Literal["off", "use"] = Field(
        default="off", description='"use" takes what `opfacade tune` measured to be faster, where it has measured.'
    )

    @property
    def names_reference(self) -> bool:
        """Whether the reference is no fallback: the backend is named, or a SKU of it, or no other SKU is allowed."""
        allowed = (self.pin,) if self.pin is not None else self.allow
        return self.backend == "reference" or bool(allowed and all("/reference/" in sku for sku in allowed))


DEFAULT = Preference()
