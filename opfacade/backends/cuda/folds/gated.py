"""Folds of gate and up values, which are parts of the rows of one tensor, by the engine of folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import plain, writes_nothing
from opfacade.backends.cuda.folds.engine import fold_kernel
from opfacade.backends.cuda.folds.scaled_engine import ScaledKernel, ScaledRows, without_one_scale
from opfacade.backends.cuda.programs import source
from opfacade.backends.cuda.programs.map_engine import paired
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._folds.op import GatedFold

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

_HALVES = {0: (0, "first"), 1: (0, "second"), 2: (1,)}


def gated_fold_kernel(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The descriptor has `makes_scales`, `parts` and `interleaved`, and its program and tensors as for `fold_kernel`."""
    rows = without_one_scale(fold_kernel(descriptor))

    def declines(problem: GatedFold, target: Target) -> Sequence[Reason]:
        if not problem.makes_scales:
            found = "null" if problem.quant is None else problem.quant.scale
            return [*support.arch_reasons(target), Reason("OPF-S003", "quant.scale", found, "token, group")]
        return rows.declines(problem, target)

    def jit_spec(problem: GatedFold, target: Target) -> JitSpec:
        found = _of_parts(problem, dict(rows.jit_spec(problem, target).params))  # type: ignore[misc]
        return support.spec_of("activation/gated_activation_computed", support.pairs(**found), target)

    def launcher(problem: GatedFold, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if writes_nothing(plain(problem)):
            return support.nothing_to_do
        scalars = source.arguments(problem.folded())
        return support.launcher(jit_spec(problem, target), plain(problem), sku, allow_build, False, scalars)

    return replace(rows, declines=declines, jit_spec=jit_spec, launcher=launcher)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedScaledKernel(ScaledKernel[GatedFold]):
    """As above, with one scale for all rows."""

    def printed(self, descriptor: GatedFold, target: Target) -> dict[str, Any]:
        return _of_parts(descriptor, super(GatedScaledKernel, self).printed(descriptor, target))


class GatedScaledRows(ScaledRows):
    template = "activation/gated_activation_scaled"


def gated_scaled_kernel(descriptor: type[Descriptor[Any]]) -> Candidate:
    """The descriptor is as for `gated_fold_kernel`, and has `launched`."""
    return fold_kernel(descriptor, GatedScaledRows(), GatedScaledKernel)


def _of_parts(problem: GatedFold, found: dict[str, Any]) -> dict[str, Any]:
    """A row of x holds its inputs one after the other, or in pairs that are one input."""
    found["row_parts"] = len(problem.parts)
    return found | (_of_pairs(problem.dtype, found) if problem.interleaved else {})


def _of_pairs(dtype: str, found: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"pairs": True, "inputs": (f"pair_{dtype}", *found["inputs"][2:])}
    made |= {name: found[name][1:] for name in ("kinds", "dims", "own", "late")}
    made["sizes"] = (2 * found["sizes"][0], *found["sizes"][2:])
    made["stages"] = tuple((name, type, paired(nodes, _HALVES), at) for name, type, nodes, at in found["stages"])
    made["uniform"] = tuple((paired(nodes, _HALVES), at, types) for nodes, at, types in found["uniform"])
    return made | {f"{level}_values": _halved(found[f"{level}_values"]) for level in ("element", "group", "row")}


def _halved(values: tuple[Any, Any]) -> tuple[Any, Any]:
    return paired(values[0], _HALVES), values[1]
