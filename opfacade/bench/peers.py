"""Other libraries on our tensors: the installed ones, the problems that they decline, and a call whose output was checked.

Harnesses define peers. A peer gets our arguments, prepares its data once (for example its own page table, or gathered K and V),
and returns a call that fills the outputs. The preparation is not timed, although a server would repeat it in each step.
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from opfacade.core.descriptor import operands_of
from opfacade.core.preference import Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.errors import GuaranteeViolation, OpfacadeError
from opfacade.plan import Plan
from opfacade.select.registry import candidates_for
from opfacade.testing import numerics
from opfacade.testing.bits import fill
from opfacade.testing.harness import harness_for, harness_of
from opfacade.testing.peer import Call, Peer, declined
from opfacade.testing.problems import ops
from opfacade.tools.workload import Work, lengths_of

if TYPE_CHECKING:
    from opfacade.core.descriptor import Args, Descriptor

__all__ = ["PEERS", "Peer", "call", "declined"]

_OF_FAMILIES: tuple[Peer, ...] = tuple({peer.name: peer for op in ops() for peer in harness_for(op).peers}.values())
PEERS = _OF_FAMILIES


def call(peer: Peer, work: Work, args: Args, target: Target) -> tuple[Call, dict[str, Any]]:
    """The peer's call, and its error relative to the bound of our kernel with the same kind of arithmetic."""
    if find_spec(peer.module) is None:
        raise declined(f"{peer.module} is not installed")
    harness, descriptor = harness_of(work.descriptor), work.descriptor
    if peer in _OF_FAMILIES and peer not in harness.peers:
        raise declined(f"does not have {descriptor.op}")
    try:
        made, before = peer.make(descriptor, args, lengths_of(work)), numerics.snapshot(descriptor, args)
        names = harness.peer_outputs(descriptor)
        for name in set(names) - set(before):
            fill(getattr(args, name), math.nan)
        made()
        worst = _worst(work, args, target, before)
    except OpfacadeError:
        raise
    except (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError, AttributeError, KeyError) as error:
        # An exception from another library means that it does not support the problem; it is not our error.
        raise declined(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]) from error
    if not worst <= 1:
        raise GuaranteeViolation(f"{worst:.3g} of the bound", code="OPF-B003", op="bench", stage="peer")
    return made, {"error_over_bound": worst}


def _worst(work: Work, args: Args, target: Target, before: dict[str, Any]) -> float:
    """The error report for the outputs that a peer writes."""
    d, names = work.descriptor, harness_of(work.descriptor).peer_outputs(work.descriptor)
    plan: Plan[Any] = Plan.select(d, Preference(backend="reference"), target)
    others = {name: None for name, spec in operands_of(d).items() if spec.written and name not in names}
    return numerics.check(d, replace(cast("Any", args), **others), _bound(d, plan.sku), rows=8, before=before).worst


def _bound(descriptor: Descriptor[Any], otherwise: KernelSku) -> KernelSku:
    """The SKU of our kernel for this problem; without a kernel, one with the harness's usual arithmetic."""
    target = Target.parse("sm_90a")
    kernels = (c for c in candidates_for(descriptor.__class__) if c.backend == "cuda")
    found = next((c.sku(descriptor, target) for c in kernels if not c.declines(descriptor, target)), None)
    usual = harness_of(descriptor).peer_guarantee(descriptor)
    return found or (otherwise if usual is None else otherwise.model_copy(update={"precision_guarantee": usual}))
