"""Preference: what a caller wants of a plan beside its descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from opfacade.core.guarantee import Word
from opfacade.core.model import Bytes, Model

Names = Annotated[tuple[str, ...], Field(strict=False)]  # a list is taken too


class Require(Model):
    """The least a plan must guarantee.

    max_error_model: no looser bound than this one, in the order of the descriptor's own `error_models`. A kernel whose
    model is "exact" satisfies every requirement; others are refused where it is a model that the op does not have.
    """

    deterministic: bool = False
    bit_stable_on_same_hardware: bool = False
    batch_invariant: Literal["none", "composition"] = "none"
    max_error_model: Word | None = None


_SHORT: dict[str, dict[str, object]] = {
    "deterministic": {"deterministic": True},
    "bit_stable_on_same_hardware": {"bit_stable_on_same_hardware": True},
    "batch_invariant": {"batch_invariant": "composition"},
}


def _require(value: object) -> object:
    if isinstance(value, str) and value in _SHORT:
        return _SHORT[value]
    return value


class Preference(Model):
    """A caller's preferences. Every field is honoured, or `select` raises UnsupportedError with the reasons.

    backend: only this one.  forbid: backends, implementations ("mma_tile" or "cuda/mma_tile") or SKU ids never to use, of any
    op.  allow: only these SKU ids.
    max_workspace_bytes: no plan that needs more.  require: the least guarantee ("deterministic" and "batch_invariant"
    are short forms).  jit: "never" refuses to compile, at load.  pin: only this SKU id.  autotune: "use" takes
    what `opfacade tune` measured to be faster, where it has measured; `explain` says so.
    """

    elsewhere: ClassVar[Mapping[str, str]] = MappingProxyType({"sku": "pin", "exclude": "forbid"})
    backend: Literal["cuda", "reference"] | None = None
    forbid: Names = ()
    allow: Names | None = None
    max_workspace_bytes: Bytes | None = None
    require: Annotated[Require, BeforeValidator(_require)] = Require()
    jit: Literal["build", "never"] = "build"
    pin: str | None = None
    autotune: Literal["off", "use"] = "off"

    @property
    def names_reference(self) -> bool:
        """Whether the reference is no fallback: the backend is named, or a SKU of it, or no other SKU is allowed."""
        allowed = (self.pin,) if self.pin is not None else self.allow
        return self.backend == "reference" or bool(allowed and all("/reference/" in sku for sku in allowed))


DEFAULT = Preference()
