"""Candidate: one implementation that a backend offers for a descriptor type."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import TensorSpec
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

Operands = Mapping[str, TensorSpec]
Launcher = Callable[[Any, Any], None]  # (args, workspace or None) -> None
# (descriptor, sku, target, lengths of requests, bytes of the problem) -> what `cost_blocks.Predicted` holds
EstimateOf = Callable[[Any, KernelSku, Target, Any, float], Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate is not chosen, as data: a stable code, the field, what it is, what would be allowed, a hint."""

    code: str
    field: str
    got: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" {self.hint}" if self.hint else ""
        return f"{self.field}={self.got} (allowed: {self.allowed}).{hint} [{self.code}]"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of one descriptor type.

    declines: every reason against it. The other functions are called only when there is none.
    workspace: exact bytes. launcher: gives the function `run` calls; may load, and build if `allow_build`.
    jit_spec: what would be compiled; None where nothing is.
    variant: "" for what is chosen by default; another name for the same implementation with other tiles, stages or splits,
    which only a pin or a measurement chooses. Its SKU must say in what it differs.
    estimate: what a SKU of this implementation is predicted to take; None where there is no model of it.
    needs: (descriptor, its operands) -> the operands as this implementation takes them, with stricter strides or alignment;
    None where it takes all that the descriptor permits. Calls are held to it.
    """

    backend: str
    impl: str
    descriptor: type[Descriptor[Any]]
    declines: Callable[[Any, Target], Sequence[Reason]]
    sku: Callable[[Any, Target], KernelSku]
    workspace: Callable[[Any, Target], int]
    launcher: Callable[[Any, Target, KernelSku, bool], Launcher]
    jit_spec: Callable[[Any, Target], JitSpec] | None = None
    variant: str = ""
    estimate: EstimateOf | None = None
    needs: Callable[[Any, Operands], Operands] | None = None

    def operands(self, descriptor: Descriptor[Any]) -> Operands:
        """What a call of this implementation must look like."""
        known = operands_of(descriptor)
        return known if self.needs is None else self.needs(descriptor, known)

    @property
    def name(self) -> str:
        """What `explain` calls it."""
        variant = f"[{self.variant}]" if self.variant else ""
        return f"{self.backend}/{self.impl}{variant}"

    @property
    def names(self) -> frozenset[str]:
        """What of it can be forbidden besides its SKU: its backend, its implementation with and without that, and itself."""
        return frozenset({self.backend, self.impl, f"{self.backend}/{self.impl}", self.name})


def variant_of(
    base: Candidate, variant: str, change: Callable[[Any], Any | None], facts: Mapping[str, bool | int | str]
) -> Candidate:
    """`base` as it would be for a changed descriptor: another split, say, without a line of kernel code.

    change: the descriptor to use instead, with the same operands; None where the variant means nothing. facts: what joins the
    spec of the SKU, so that the variant can be told and pinned. Where a variant is another binary, make a Candidate of it.
    """

    other = lru_cache(maxsize=1024)(change)  # each of the functions below asks for it
    named = lru_cache(maxsize=256)(lambda plain: _with_facts(plain, facts))

    def declines(descriptor: Any, target: Target) -> Sequence[Reason]:
        changed = other(descriptor)
        if changed is None:
            return (Reason("OPF-S017", "variant", variant, "a descriptor that it means something for"),)
        reasons = base.declines(changed, target)
        if reasons or base.declines(descriptor, target):
            return reasons
        if named(base.sku(changed, target)).id == base.sku(descriptor, target).id:
            return (Reason("OPF-S017", "variant", variant, "a descriptor for which it is not the default"),)
        return ()

    jit_spec = base.jit_spec
    return replace(
        base,
        declines=declines,
        sku=lambda descriptor, target: named(base.sku(other(descriptor), target)),
        workspace=lambda descriptor, target: base.workspace(other(descriptor), target),
        launcher=lambda descriptor, target, sku, allow: base.launcher(other(descriptor), target, sku, allow),
        jit_spec=None if jit_spec is None else lambda descriptor, target: jit_spec(other(descriptor), target),
        variant=variant,
    )


def _with_facts(sku: KernelSku, facts: Mapping[str, bool | int | str]) -> KernelSku:
    """The SKU with more facts in its spec."""
    spec = tuple(sorted({**dict(sku.spec), **facts}.items()))
    return sku.model_copy(update={"spec": spec}).revalidated()
