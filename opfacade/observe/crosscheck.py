"""Cross-check: repeats a fraction of runs on the reference, and compares the outputs with the error bound of the SKU.

OPFACADE_CROSSCHECK is the fraction, read when a plan is created. Checked runs are chosen by a counter, not at random. The
kernel works on the caller's tensors, and the reference on copies that were made before the run. During a CUDA graph capture, no
run is checked. An output beyond the bound raises GuaranteeViolation and writes a file for `replay` to a new directory that only
the user may read; the file counts against OPFACADE_DUMP_MAX_MB and OPFACADE_DUMP_MAX_COUNT.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Protocol, cast

from opfacade.base.capture import capturing, device_of
from opfacade.core.candidate import Launcher
from opfacade.core.descriptor import ArgsT, Descriptor, inout, operands_of
from opfacade.core.overlap import extent, self_overlaps
from opfacade.core.preference import Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.errors import GuaranteeViolation
from opfacade.observe import dump_files
from opfacade.select import explanation, registry, selection

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args

ROWS = 64  # query rows that are compared; special values and exact copies are compared in all rows


@dataclass(frozen=True)
class Checked:
    """The plan whose runs are repeated."""

    descriptor: Descriptor[Any]
    sku: KernelSku
    target: Target


@dataclass(frozen=True)
class Evidence:
    """One run: its arguments before the run, and the outputs of the kernel and of the reference."""

    before: Any
    got: dict[str, Tensor]
    reference: dict[str, Tensor]


def due_by_count(rate: float) -> Callable[[], bool]:
    """Returns a function that is true for a fraction `rate` of its calls, evenly spread and beginning with the first. Takes no
    lock."""
    calls = count()

    def due() -> bool:
        n = next(calls)
        return int(-n * rate // 1) != int(-(n + 1) * rate // 1)

    return due


def wrap(launch: Launcher, rate: float, of: tuple[Descriptor[Any], KernelSku, Target]) -> Launcher:
    """A launcher that repeats a fraction `rate` of its launches on the reference and compares them; `launch` itself if `rate`
    is 0."""
    if not rate:
        return launch
    plan = Checked(*of)
    due = due_by_count(rate)
    reference, limits = _reference(plan), dump_files.Limits.current()

    def checked(args: Args, workspace: Tensor | None) -> None:
        if not due() or capturing(device_of(args)):
            launch(args, workspace)
            return
        before = copied(args)
        launch(args, workspace)
        _compare(plan, limits, _gather(plan, reference, before, args))

    return checked


def _reference(plan: Checked) -> Callable[[Args], None]:
    """Runs the reference of the same problem, without a cross-check, in a workspace of its own if it needs one."""
    *_, options = explanation.answer("crosscheck", plan.descriptor, Preference(backend="reference"), plan.target)
    option = selection.choose(plan.descriptor, plan.target, options)
    assert option.sku is not None
    launch, size = option.candidate.launcher(plan.descriptor, plan.target, option.sku, False), option.workspace_size or 0

    def run(args: Args) -> None:
        import torch

        launch(args, torch.empty(size, dtype=torch.uint8, device=device_of(args)) if size else None)

    return run


def copied(args: ArgsT) -> Any:
    """The same arguments as copies with the same strides."""
    given = {name: getattr(args, name) for name in type(args).__slots__}
    return replace(cast("Any", args), **{name: _copy(t) for name, t in given.items() if t is not None})


def _copy(tensor: Tensor) -> Tensor:
    import torch

    if tensor.numel() and self_overlaps(tensor.shape, tensor.stride()):  # torch cannot copy into it
        span = tensor.as_strided((extent(tensor.shape, tensor.stride()),), (1,))
        return span.clone().as_strided(tensor.shape, tensor.stride())
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _compare(plan: Checked, limits: dump_files.Limits, evidence: Evidence) -> None:
    report = judge(plan, evidence, evidence.got)
    if not report.worst <= 1.0:
        raise _violation(plan, evidence, report, _dump(plan, evidence, limits))


def _gather(plan: Checked, reference: Callable[[Args], None], before: Args, args: Args) -> Evidence:
    written = [name for name, spec in operands_of(plan.descriptor).items() if spec.written]
    repeated = copied(before)
    reference(repeated)
    got = {name: getattr(args, name) for name in written}
    return Evidence(before, got, {name: getattr(repeated, name) for name in written})


def judge(plan: Checked, evidence: Evidence, outputs: dict[str, Tensor]) -> Any:
    """Checks the outputs against the inputs from before the run, so a kernel that corrupts its inputs is found."""
    before = evidence.before
    were = {name: getattr(before, name) for name in inout(plan.descriptor)}
    call = (plan.descriptor, replace(before, **outputs), plan.sku, were)
    return registry.harness_for(plan.descriptor.op).check_call(call, ROWS)


class Verdict(Protocol):
    """A report on the outputs of a call: the largest ratio of an error to its bound, and the element that has it."""

    @property
    def worst(self) -> float: ...
    @property
    def where(self) -> str: ...


def _violation(plan: Checked, evidence: Evidence, report: Verdict, path: str) -> GuaranteeViolation:
    other = judge(plan, evidence, evidence.reference)
    op, told = plan.descriptor.op, f"the reference is at {other.worst:.3g}"
    message = (
        f"{op}.run: {plan.sku.id} is {report.worst:.3g} times its error bound off at {report.where}; {told}. "
        f"Replay with opfacade.tools.crosscheck.replay({path!r}). [OPF-G001]"
    )
    error = GuaranteeViolation(message, code="OPF-G001", op=op, stage="run")
    error.sku, error.worst, error.dump = plan.sku.id, report.worst, path
    return error


def _dump(plan: Checked, evidence: Evidence, limits: dump_files.Limits) -> str:
    """The path of the dump file, or the reason why it could not be written; this failure must not hide the violation."""
    tensors = {name: getattr(evidence.before, name) for name in type(evidence.before).__slots__}
    facts = {"descriptor": plan.descriptor.canonical_json(), "sku": plan.sku.id, "target": astuple(plan.target)}
    given = [*(t for t in tensors.values() if t is not None), *evidence.got.values(), *evidence.reference.values()]
    prefix = f"{plan.descriptor.op}-{plan.descriptor.digest()[:12]}-"
    try:
        # An output may be a view: only its elements are saved, not its whole storage.
        got = {name: t if t.untyped_storage().nbytes() == t.nbytes else t.clone() for name, t in evidence.got.items()}
        content = facts | {"before": tensors, "got": got, "reference": evidence.reference}
        with dump_files.new_directory(prefix, limits, sum(t.nbytes for t in given)) as place:
            dump_files.save(place / "crosscheck.pt", content)
    except dump_files.FAILURES as error:
        return f"no dump: {str(error).partition(chr(10))[0]}"
    return str(place / "crosscheck.pt")
