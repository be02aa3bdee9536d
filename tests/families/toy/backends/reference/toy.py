"""The reference of the toy family: one candidate computes all rows at once, the other one row at a time, with the same bits."""

from __future__ import annotations

from dataclasses import replace

import torch
from opfacade.plans.toy import KeepArgs, KeepDescriptor, PickArgs, PickDescriptor, ScaleArgs, ScaleDescriptor

from opfacade.backends.reference.declared import reference
from opfacade.core.candidate import Candidate, Launcher
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target


def bits(tensor):
    """The tensor viewed as integers, for any strides."""
    return tensor.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _sku(impl: str, descriptor: ScaleDescriptor, target: Target) -> KernelSku:
    guarantee = PrecisionGuarantee(
        math_precision="f32",
        accumulator="none",
        deterministic=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="toy-f32"),
        evidence=("tests/families/test_toy.py::test_conformance",),
    )
    return KernelSku(
        category=descriptor.category,
        op=descriptor.op,
        backend="reference",
        arch=target.arch,
        impl=impl,
        revision=1,
        dtypes=(("x", descriptor.dtype),),
        layout="strided",
        spec=(("factor_set", True),),
        precision_guarantee=guarantee,
    )


def _scale(descriptor: ScaleDescriptor, x, gain, peak) -> None:
    y = x.float() * (gain * descriptor.factor)
    x.copy_(y)
    peak.copy_(y.abs().amax(-1) if x.numel() else 0.0)


def _whole(descriptor: ScaleDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: ScaleArgs, workspace: object) -> None:
        _scale(descriptor, args.x, args.gain, args.peak)

    return launch


def _by_row(descriptor: ScaleDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: ScaleArgs, workspace: object) -> None:
        for row in range(descriptor.rows):
            _scale(descriptor, args.x[row], args.gain, args.peak[row])

    return launch


def _pick(descriptor: PickDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: PickArgs, workspace: object) -> None:
        valid = descriptor.rows if args.num_valid is None else int(args.num_valid[0])
        x, out = args.x[:valid], (args.x if args.out is None else args.out)[:valid]
        out.copy_(x.float() + args.gain * args.table[args.index[:valid].long()].float())

    return launch


def _pick_by_row(descriptor: PickDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    def launch(args: PickArgs, workspace: object) -> None:
        valid = descriptor.rows if args.num_valid is None else int(args.num_valid[0])
        out = args.x if args.out is None else args.out
        for row in range(valid):
            out[row] = args.x[row].float() + args.gain * args.table[int(args.index[row])].float()

    return launch


def _pick_sku(descriptor: PickDescriptor, target: Target, impl: str = "torch") -> KernelSku:
    facts = {"in_place": descriptor.in_place, "num_valid": descriptor.num_valid}
    spec = tuple((name, True) for name, value in facts.items() if value)
    return _sku(impl, descriptor, target).model_copy(update={"spec": spec})


_WHOLE = Candidate(
    "reference",
    "torch",
    ScaleDescriptor,
    declines=lambda descriptor, target: (),
    sku=lambda descriptor, target: _sku("torch", descriptor, target),
    workspace=lambda descriptor, target: 0,
    launcher=_whole,
)

_PICK = replace(_WHOLE, descriptor=PickDescriptor, sku=_pick_sku, launcher=_pick)


def _keep(descriptor: KeepDescriptor, args: KeepArgs) -> None:
    bits(args.out).copy_(bits(args.x) * args.mask[:, None])


_KEEP = reference(
    KeepDescriptor,
    PrecisionGuarantee(
        math_precision="copy",
        accumulator="none",
        deterministic=True,
        batch_invariant="composition",
        error_model=ErrorModel(id="exact"),
        evidence=("tests/families/test_toy_dtypes.py::test_verify",),
    ),
    lambda descriptor: (("x", descriptor.dtype),),
    _keep,
)

CANDIDATES = (
    _WHOLE,
    _PICK,
    replace(_PICK, config="rows", sku=lambda descriptor, target: _pick_sku(descriptor, target, "rows"), launcher=_pick_by_row),
    replace(_WHOLE, config="rows", sku=lambda descriptor, target: _sku("rows", descriptor, target), launcher=_by_row),
    _KEEP,
)
