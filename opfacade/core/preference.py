"""Preference: a caller's requirements on a plan, in addition to its descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticKnownError

from opfacade.core.backends import Backend
from opfacade.core.guarantee import BoundedWait, RankInvariant, Word
from opfacade.core.model import Bytes, Model

Names = Annotated[tuple[str, ...], Field(strict=False)]  # a list is accepted too


class Require(Model):
    """The guarantees that a plan must have.

    max_error_model: the bound may not be wider than this model, in the order of the descriptor's own `error_models`. A kernel
    whose model is "exact" satisfies every requirement; a model that the op does not have is refused.
    """

    deterministic: bool = Field(default=False, description="The same inputs give the same bits, run to run, in one process.")
    bit_stable_on_same_hardware: bool = Field(
        default=False,
        description="The same inputs give the same bits also in other processes, streams, allocations and workspace contents.",
    )
    batch_invariant: Literal["none", "composition"] = Field(
        default="none", description='"composition": the bits of a request do not depend on the rest of its batch.'
    )
    rank_invariant: RankInvariant = Field(
        default="none",
        description='"ranks": all ranks of a group get the same bits; "world": also for any number of ranks.',
    )
    bounded_wait: BoundedWait = Field(
        default="none",
        description='"abort": the group ends a wait for a rank at the deadline; "kernel": the waiting kernel ends it.',
    )
    max_error_model: Word | None = Field(
        default=None, description="The error bound may not be wider than this model, in the order of ERROR_MODELS; None: any."
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
    """A caller's preferences. `select` respects every field, or raises UnsupportedError with the reasons.

    backend: only this backend.  forbid: backends, implementations ("mma_tile" or "cuda/mma_tile") or SKU ids that are never
    used, for any op.  allow: only these SKU ids.
    max_workspace_bytes: the largest workspace.  require: guarantees that a plan must have ("deterministic" and
    "batch_invariant" are short forms).  allow_allocation, allow_sync: False refuses candidates whose run may allocate device
    memory, or may wait for the device, as the reference does.  jit: "never" does not compile when a kernel is loaded.
    pin: only this SKU id.
    autotune: "use" takes the candidate that was fastest in a measurement by `opfacade tune`, if there is one; `explain` reports
    this.
    """

    elsewhere: ClassVar[Mapping[str, str]] = MappingProxyType({"sku": "pin", "exclude": "forbid"})
    backend: Backend | None = Field(default=None, description="Only candidates of this backend are used; None: any backend.")
    forbid: Names = Field(
        default=(),
        description='Backends, implementations ("mma_tile" or "cuda/mma_tile") or SKU ids that are never used, for any op.',
    )
    allow: Names | None = Field(default=None, description="Only these SKU ids are used; None: any SKU.")
    max_workspace_bytes: Bytes | None = Field(
        default=None, description="Largest workspace of a plan, in bytes; None: no limit."
    )
    require: Annotated[Require, BeforeValidator(_require)] = Field(
        default=Require(), description="Guarantees that a plan must have: a Require, or the name of one of its flags."
    )
    allow_allocation: bool = Field(
        default=True, description="Whether a run may allocate device memory besides its workspace; kernels of cuda never do."
    )
    allow_sync: bool = Field(default=True, description="Whether a run may wait for the device; kernels of cuda never do.")
    jit: Literal["build", "never"] = Field(
        default="build",
        description='"never": loading a kernel that is not built raises an error; the choice does not change.',
    )
    pin: str | None = Field(
        default=None,
        description="Only the candidate with this SKU id is used; if there is none, OPF-S012 names similar ids.",
    )
    autotune: Literal["off", "use"] = Field(
        default="off", description='"use": choose the candidate that `opfacade tune` measured to be faster, if it has measured.'
    )

    @property
    def names_reference(self) -> bool:
        """Whether the caller chose the reference: its backend or a SKU of it is named, or no other SKU is allowed."""
        allowed = (self.pin,) if self.pin is not None else self.allow
        return self.backend == "reference" or bool(allowed and all("/reference/" in sku for sku in allowed))


DEFAULT = Preference()
