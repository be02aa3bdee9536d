"""Products by cuBLASLt: f32, f64 and 16-bit types on every GPU from sm_80 on, if our own kernels decline."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.backends.library import matmul_algorithms as algorithms
from opfacade.backends.library.cublaslt_product import Call, Facts, Matrix, Product, aligned
from opfacade.base import capture
from opfacade.core.candidate import Candidate, Launcher, Operands, Reason
from opfacade.core.descriptor import cached_by_specialization
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.errors import Issue, from_issues
from opfacade.plans.matmul import MatmulArgs, MatmulDescriptor
from opfacade.programs.guarantees import error_model
from opfacade.validation import capture_and_fork as moment

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MIN_SM = 80
_WORKSPACE = 32 << 20  # bytes for every problem, NVIDIA's recommendation for sm_90
_MOST_BATCHES = 65535
_HEURISTIC = "heuristic"
_REPEATS = ("tests/families/matmul/test_cublaslt_gpu.py::test_a_kept_algorithm_repeats_its_bits",)
_MOST_PRODUCTS = 256  # descriptions that a thread caches per plan
# Tensor cores before sm_90 add 8 products at a time. Parts of k may be added in any order, so no order bounds the error.
_SUMS = {
    "matmul-mma16": {"u_acc": 2.0**-23, "k_step": 8.0, "unordered": 1.0},
    "matmul-f32": {"u_acc": 2.0**-24, "k_step": 1.0},
    "matmul-f64": {"u_acc": 2.0**-53, "k_step": 1.0},
    # Operands keep 10 bits of mantissa, cut or rounded, and may be flushed below the smallest normal number.
    "matmul-tf32": {"u_acc": 2.0**-23, "k_step": 4.0, "unordered": 1.0, "u_operand": 2.0**-10, "tiny_operand": 2.0**-126},
}
# An algorithm may store the sum in 16 bits before it adds a bias: half a unit more, and f16 has no number above 65504.
_STORED_SUMS = {"f16": {"u_sum": 2.0**-11, "tiny_sum": 2.0**-25, "max_sum": 65504.0}, "bf16": {"u_sum": 2.0**-8}}
_MODELS = {"f16": "matmul-mma16", "bf16": "matmul-mma16", "f32": "matmul-f32", "f64": "matmul-f64"}
_TF32 = "tf32"


def _lacks(problem: MatmulDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons to decline problems that cuBLASLt cannot compute as the descriptor states."""
    if target.sm_version < _MIN_SM:
        yield Reason("OPF-S001", "target.arch", target.arch, f"sm_{_MIN_SM} and later")
    yield from cublaslt.reasons()
    if problem.dtype not in _MODELS:
        yield Reason("OPF-S002", "dtype", problem.dtype, ", ".join(_MODELS))
        return
    results = (problem.dtype,) if problem.dtype in ("f32", "f64") else (problem.dtype, "f32")
    if problem.result not in results:
        yield Reason("OPF-S002", "out_dtype", problem.result, ", ".join(results))
    if problem.bias and (problem.bias_dtype or problem.result) != problem.result:
        yield Reason("OPF-S002", "bias_dtype", str(problem.bias_dtype), problem.result)
    for field, only in (("gated", False), ("num_valid", False), ("order", "free")):
        if getattr(problem, field) != only:
            yield Reason("OPF-S003", field, str(getattr(problem, field)), str(only))
    activations = ("none",) if problem.dtype == "f64" or problem.add or problem.accumulate else ("none", "relu")
    if problem.activation not in activations:  # the library adds before the activation, and its gelu uses an inaccurate tanh
        yield Reason("OPF-S003", "activation", problem.activation, ", ".join(activations))
    for field in ("weight_format", "sm_limit"):
        if getattr(problem, field) is not None:
            yield Reason("OPF-S003", field, "set", "null")
    if problem.bias + problem.add + problem.accumulate > 1:
        yield Reason("OPF-S003", "bias, add, accumulate", "several", "one of them")


@cached_by_specialization
def _unfit(problem: MatmulDescriptor, target: Target) -> tuple[Reason, ...]:
    return tuple(_lacks(problem, target))


def _sizes(problem: MatmulDescriptor) -> Iterator[Reason]:
    if problem.k == 0:
        yield Reason("OPF-S003", "k", "0", "1 or more")
    if problem.batch > _MOST_BATCHES:
        yield Reason("OPF-S006", "batch", str(problem.batch), f"at most {_MOST_BATCHES}")
    factors = ("alpha", "beta") if problem.add or problem.accumulate else ("alpha",)
    for name in factors:
        if getattr(problem, name) == 0:  # the library does not read operands that 0 multiplies, so their NaN would be lost
            yield Reason("OPF-S003", name, "0", "other numbers")


def _declines(problem: MatmulDescriptor, target: Target) -> Sequence[Reason]:
    return (*_unfit(problem, target), *_sizes(problem))


def _guarantee(problem: MatmulDescriptor, target: Target, fixed: bool) -> PrecisionGuarantee:
    """fixed: one algorithm, whose bits repeat. Otherwise no flag is set, because the library chooses an algorithm from sizes,
    strides and addresses. No algorithm promises the bits of a row for other numbers of rows."""
    reduced = problem.fp32_precision == _TF32
    model = "matmul-tf32" if reduced else _MODELS[problem.dtype]
    program = error_model(problem.program().values(), "device", "matmul", target.sm_version)
    constants = {"u": 2.0**-24} if model != "matmul-f64" else {}
    constants |= dict(program.constants) | _SUMS[model] | (_STORED_SUMS.get(problem.result, {}) if problem.bias else {})
    return PrecisionGuarantee(
        math_precision=_TF32 if reduced else problem.dtype,
        accumulator="f64" if problem.dtype == "f64" else "f32",
        deterministic=fixed,
        bit_stable_on_same_hardware=fixed,
        evidence=_REPEATS if fixed else (),
        error_model=ErrorModel(id=model, constants=tuple(sorted(constants.items()))),
    )


def _facts(problem: MatmulDescriptor) -> dict[str, Any]:
    found: dict[str, Any] = {name: True for name in ("accumulate", "add", "bias") if getattr(problem, name)}
    found |= {"activation": problem.activation} if problem.activation != "none" else {}
    found |= {"fp32_precision": _TF32} if problem.fp32_precision == _TF32 else {}
    plain = (("weight_layout", "nk"), ("x_layout", "mk"))
    return found | {name: getattr(problem, name) for name, usual in plain if getattr(problem, name) != usual}


@cached_by_specialization
def _sku(problem: MatmulDescriptor, target: Target, impl: str, workspace: int, algo: str) -> KernelSku:
    named = {"algo": algo, "cublaslt": f"v{cublaslt.installed()}", "workspace": workspace}
    dtypes = {"out": problem.result, "x": problem.dtype} | ({"bias": problem.result} if problem.bias else {})
    return KernelSku(
        category=problem.category,
        op=problem.op,
        backend="library",
        arch=target.arch,
        impl=impl,
        revision=1,
        dtypes=tuple(sorted(dtypes.items())),
        layout="strided",
        spec=tuple(sorted((_facts(problem) | named).items())),
        precision_guarantee=_guarantee(problem, target, algo != _HEURISTIC),
    )


def _needs(problem: MatmulDescriptor, operands: Operands) -> Operands:
    """The operands with broadcast limited: columns must not overlap in cuBLASLt, so only x and weight may be expanded, along
    the batch."""
    batches = (0,) if problem.batch > 1 else ()
    found = dict(operands)
    for name in ("x", "weight"):
        found[name] = found[name]._replace(broadcast=batches)
    if "add" in found:
        found["add"] = found["add"]._replace(broadcast=())
    return found


def _launcher(
    problem: MatmulDescriptor, target: Target, sku: KernelSku, allow_build: bool, workspace: int, stored: bytes | None = None
) -> Launcher:
    if problem.total_num_rows * problem.n == 0:
        return lambda args, scratch: None
    library = cublaslt.load(str(dict(sku.spec)["cublaslt"]).removeprefix("v"))
    number = ctypes.c_double if problem.dtype == "f64" else ctypes.c_float
    alpha = number(problem.alpha)
    beta = number(problem.beta if problem.add or problem.accumulate else 0.0)
    local = threading.local()

    def product(args: MatmulArgs, device: torch.device) -> Product:
        kept: dict[Any, Product] = local.__dict__
        facts = _facts_of(problem, args, workspace)
        key = device.index, facts
        if key not in kept:
            moment.refuse_capture(sku.op, f"{sku.id} has no algorithm for these strides yet", device)
            if len(kept) >= _MOST_PRODUCTS:
                kept.pop(next(iter(kept)))
            kept[key] = Product(library, library.handle(device), facts, stored)
        return kept[key]

    def launch(args: MatmulArgs, scratch: Tensor | None) -> None:
        _refuse_overlap(problem, args)
        out: Any = args.out
        with capture.current(out.device):
            read = out if problem.accumulate else args.add if args.add is not None else out
            a, b, c, d, bias, room = (_address(one) for one in (args.weight, args.x, read, out, args.bias, scratch))
            product(args, out.device).run(Call(alpha, beta, a, b, c, d, bias, room, stream_of(out.device)))

    return launch


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def stream_of(device: torch.device) -> int:
    """The address of a device's current stream."""
    import torch

    return torch.cuda.current_stream(device).cuda_stream


def _facts_of(problem: MatmulDescriptor, args: MatmulArgs, workspace: int) -> Facts:
    read = args.add if problem.add else args.out
    a, b, c, d = (Matrix.of(one) for one in (args.weight, args.x, read, args.out) if one is not None)
    transposed = problem.weight_layout == "nk", problem.x_layout == "km"
    bias = 0 if args.bias is None else aligned(args.bias)
    relu = problem.activation == "relu"
    tf32 = problem.fp32_precision == "tf32"
    return Facts(problem.dtype, problem.result, transposed, problem.batch, a, b, c, d, bias, workspace, relu, tf32)


def _refuse_overlap(problem: MatmulDescriptor, args: MatmulArgs) -> None:
    """Raises LayoutError for overlapping rows, which cuBLASLt does not support."""
    for name in ("x", "weight", "add"):
        tensor = getattr(args, name)
        if tensor is not None and tensor.shape[-2] > 1 and 0 < tensor.stride(-2) < tensor.shape[-1]:
            expected = f"rows that are {tensor.shape[-1]} or more elements apart"
            issue = Issue("OPF-A029", name, expected, str(tensor.stride(-2)), "Call .contiguous().", kind="LayoutError")
            raise from_issues(problem.op, "run", [issue])


def _learn(problem: MatmulDescriptor, target: Target, workspace: int) -> None:
    import torch

    device = torch.device("cuda", torch.cuda.current_device())
    with capture.current(device):
        algorithms.learn(problem, target, workspace, device)


def _candidate(impl: str, workspace: int) -> Candidate:
    return Candidate(
        "library",
        impl,
        MatmulDescriptor,
        declines=_declines,
        sku=lambda problem, target: _sku(problem, target, impl, workspace, _HEURISTIC),
        workspace=lambda problem, target: workspace,
        launcher=partial(_launcher, workspace=workspace),
        needs=_needs,
        learn=partial(_learn, workspace=workspace) if workspace else None,
    )


def _without_gaps(problem: MatmulDescriptor, operands: Operands) -> Operands:
    """The facts in the form that `learn` stores."""
    found = _needs(problem, operands).items()
    return {name: spec._replace(layout="contiguous", alignment=algorithms.ALIGNED, broadcast=()) for name, spec in found}


def _config(place: int) -> Candidate:
    """A tuning config: an algorithm that `tune` stored, by its position in the library's order."""
    impl, config = "cublaslt_matmul", f"kept_{place + 1}"

    def kept(problem: MatmulDescriptor, target: Target) -> algorithms.Kept:
        return algorithms.kept(problem, target)[place]

    def declines(problem: MatmulDescriptor, target: Target) -> Sequence[Reason]:
        reasons = _declines(problem, target)
        if reasons or place < len(algorithms.kept(problem, target)):
            return reasons
        return (Reason("OPF-S017", "config", config, "sizes for which tune has kept as many algorithms"),)

    def launcher(problem: MatmulDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        found = kept(problem, target)
        return _launcher(problem, target, sku, allow_build, found.workspace, found.algo)

    return Candidate(
        "library",
        impl,
        MatmulDescriptor,
        declines=declines,
        sku=lambda problem, target: _sku(problem, target, impl, kept(problem, target).workspace, kept(problem, target).name),
        workspace=lambda problem, target: kept(problem, target).workspace,
        launcher=launcher,
        needs=_without_gaps,
        config=config,
    )


CANDIDATES = (
    _candidate("cublaslt_matmul", _WORKSPACE),
    _candidate("cublaslt_matmul_lean", 0),
    *(_config(place) for place in range(algorithms.KEPT)),
)
