"""Runs dumped calls again, and compares the outputs with the dumped outputs and with the error bound of the SKU."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import inout, operands_of
from opfacade.core.preference import Preference
from opfacade.core.target import Target, of_device
from opfacade.errors import ArgumentError
from opfacade.observe import dumps
from opfacade.plan import Plan
from opfacade.select.registry import load_descriptor
from opfacade.testing import numerics

if TYPE_CHECKING:
    from torch import Tensor
    from torch import device as Device

    from opfacade.core.descriptor import Args, Descriptor
    from opfacade.core.operands import TensorSpec


@dataclass(frozen=True, slots=True)
class Replayed:
    """One repeated call. same: whether the outputs are bitwise equal to the dumped outputs; None if there are none. worst,
    dumped_worst: the largest error over the SKU's bound, of the new and of the dumped outputs; at most 1 if the guarantee
    holds."""

    place: Path
    sku: str
    dumped_sku: str
    same: bool | None
    worst: float
    dumped_worst: float | None
    where: str

    @property
    def sound(self) -> bool:
        return self.worst <= 1


def replay(place: Path, device: str | None = None, prefer: Preference | None = None) -> tuple[Replayed, ...]:
    """Runs the dump in `place`, or every dump in its subdirectories, on `device` (default: the device of the dump)."""
    found = dumps.find(place)
    if not found:
        raise ArgumentError(f"replay: {place} expected a dump or a directory of dumps, got none. [OPF-E010]", code="OPF-E010")
    return tuple(_replay(dumps.load(path), device, prefer) for path in found)


def _replay(dump: dumps.Dump, device: str | None, prefer: Preference | None) -> Replayed:
    import torch

    try:
        where = torch.device(device or dump.device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:  # torch raises these for an unknown device
        message = f"replay: device expected one of this machine, got {device or dump.device}. [OPF-E011]"
        raise ArgumentError(message, code="OPF-E011", op="replay", stage="run") from error
    descriptor = load_descriptor(dump.descriptor)
    _require_whole(descriptor, dump)
    target = of_device(where.index or 0) if where.type == "cuda" else Target.cpu()
    plan: Plan[Any] = Plan.select(descriptor, prefer, target)
    args = _bundle(plan, dump.inputs, where)
    plan.run(args)
    report = _judge(plan, args, dump)
    dumped = None
    if dump.outputs:
        dumped = _judge(plan, _bundle(plan, dump.inputs | dump.outputs, where), dump).worst
    same = all(torch.equal(_bits(getattr(args, name)), _bits(t)) for name, t in dump.outputs.items()) if dump.outputs else None
    return Replayed(dump.place, plan.sku.id, dump.sku, same, report.worst, dumped, report.where)


def _require_whole(descriptor: Descriptor[Any], dump: dumps.Dump) -> None:
    """ArgumentError unless each operand has a tensor, and each dumped output has the shape and dtype of its operand."""
    operands = operands_of(descriptor)
    missing = [name for name in operands if name not in dump.inputs]
    unlike = [name for name, tensor in dump.outputs.items() if not _alike(tensor, dump.inputs.get(name), operands.get(name))]
    if missing or unlike or len(dump.outputs) not in (0, sum(spec.written for spec in operands.values())):
        raise dumps.damaged(
            dump.place, f"no {missing[0]}" if missing else f"outputs {sorted(dump.outputs)[:8]} of another call"
        )


def _alike(tensor: Tensor, before: Tensor | None, spec: TensorSpec | None) -> bool:
    return (
        spec is not None
        and before is not None
        and spec.written
        and (tensor.shape, tensor.dtype) == (before.shape, before.dtype)
    )


def _bundle(plan: Plan[Any], tensors: dict[str, Any], device: Device) -> Any:
    wanted = plan.descriptor.args_type
    given = {name: tensors[name].to(device, copy=True) for name in wanted.__slots__ if name in tensors}
    return wanted(**given)


def _judge(plan: Plan[Any], args: Args, dump: dumps.Dump) -> numerics.Report:
    """The error over the bound, computed on the CPU with the inout operands from before the call."""
    given = {name: getattr(args, name) for name in plan.descriptor.args_type.__slots__}
    here = type(args)(**{name: None if tensor is None else tensor.cpu() for name, tensor in given.items()})
    were = {name: dump.inputs[name] for name in inout(plan.descriptor)}
    return numerics.check(plan.descriptor, here, plan.sku, before=were)


def _bits(tensor: Tensor) -> Any:
    """Compares bytes, because NaN is not equal to itself."""
    import torch

    return tensor.detach().cpu().contiguous().view(torch.uint8)
