"""Shared code of CUDA families: common refusals, launchers of JitSpecs, and launch errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda.host.direct import Direct, KernelCall, require_fit
from opfacade.core.call_guards import getter
from opfacade.core.candidate import FastPaths, Launcher, Operands, Reason
from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.launch_errors import device_error
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.validation import capture_and_fork as moment

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args
    from opfacade.jit.spec import JitSpec
    from opfacade.plans._attention.paging import PagePool

MIN_SM = 80
_FP8_SM = 89  # the first with fp8 conversions
MAX_GRID_YZ = 65535

# Memory safety at every validation level: a page id outside the pool reads page 0, lengths and indptr are clamped to their
# tensors, and rows without a destination are not appended. Measured by bench/clamp.py.
SAFE_PAGES = True

# Modules of folds have several kernels, which nvcc then optimises on two threads. The number is fixed because the bytes of a
# cubin depend on it. Modules of one kernel gain nothing.
_SPLIT_COMPILE = "--split-compile=2"

SpecPairs = tuple[tuple[str, bool | int | str], ...]


def pairs(**facts: bool | int | str) -> SpecPairs:
    """Compile-time facts as sorted pairs, the form in SKUs and JitSpecs."""
    return tuple(sorted(facts.items()))


def page_facts(pool: PagePool, page_table: str) -> dict[str, bool | int | str]:
    """Compile-time facts of pages; `safe_pages` is omitted if off."""
    safe = {"safe_pages": True} if SAFE_PAGES else {}
    return {"page_table": page_table, "pow2_pages": pool.power_of_two, **safe}


def arch_reasons(target: Target) -> Iterator[Reason]:
    if target.sm_version < MIN_SM:
        hint = "Select for a GPU target, or use the reference backend." if target.is_cpu else ""
        yield Reason("OPF-S001", "target.arch", target.arch, f"sm_{MIN_SM} and later", hint)


def fp8_reasons(target: Target, what: str) -> Iterator[Reason]:
    """Refuse supported hardware without fp8 conversions. what: the value that needs them, for the message."""
    if _FP8_SM > target.sm_version >= MIN_SM:
        yield Reason("OPF-S001", "target.arch", target.arch, f"sm_{_FP8_SM} and later for {what}")


def choice_reason(code: str, field: str, got: object, allowed: Sequence[Any], hint: str = "") -> Iterator[Reason]:
    """Refuse a value that is not among the allowed ones."""
    if got not in allowed:
        yield Reason(code, field, str(got), ", ".join(map(str, allowed)), hint)


def limit_reason(code: str, field: str, got: int, limit: int, hint: str = "") -> Iterator[Reason]:
    if got > limit:
        yield Reason(code, field, str(got), f"at most {limit}", hint)


def shared_memory_reason(needed: int, target: Target) -> Iterator[Reason]:
    if target.sm_version >= MIN_SM:
        yield from limit_reason("OPF-S004", "target.max_shared_memory (bytes a block needs)", needed, target.max_shared_memory)


def spec_of(template: str, facts: SpecPairs, target: Target) -> JitSpec:
    from opfacade.jit.spec import JitSpec

    flags = () if SAFE_PAGES else ("-DOPF_TRUSTED_INDICES",)
    if template.startswith("reduction/"):
        flags = (*flags, _SPLIT_COMPILE)
    return JitSpec(name=template.rpartition("/")[2], template=template, params=facts, arch=target.arch, flags=flags)


def launcher(
    spec: JitSpec, descriptor: Descriptor[Any], sku: KernelSku, allow_build: bool, workspace: bool, scalars: tuple[Any, ...]
) -> Launcher:
    """A launcher that calls the compiled module's `run` with the operands in the order of operands(), the workspace if any, and
    scalars."""
    import torch

    from opfacade import jit

    module = jit.load(spec, allow_build=allow_build, label=sku.id)
    host = jit.load(jit.HOST, allow_build=allow_build)
    prepared = _Prepared(module, sku)
    if torch.cuda.is_available():
        prepared.on(torch.cuda.current_device())
    run: Callable[..., None] = module.run
    operands = getter(tuple(operands_of(descriptor)))

    learners: list[Callable[[Any], None]] = []

    def launch(args: Args, scratch: Tensor | None) -> None:
        given = operands(args)
        prepared.on(given[0].device.index)
        try:
            if workspace:
                run(*given, scratch, *scalars)
            else:
                run(*given, *scalars)
        except RuntimeError as error:
            raise device_error(sku, error) from error
        for learn in learners:
            learn(args)

    def direct(workspace_bytes: int, operands: Operands) -> Direct:
        return Direct(host, KernelCall(run, scalars, workspace, workspace_bytes), descriptor, operands)

    def fast_paths(workspace_bytes: int, operands: Operands) -> FastPaths:
        made = direct(workspace_bytes, operands)
        learners.append(made.learn)
        return made.paths

    require_fit(descriptor, scalars)
    launch.fast_paths = fast_paths  # type: ignore[attr-defined]
    launch.refuse_unsound = lambda *plan: direct(*plan).refuse_unsound  # type: ignore[attr-defined]
    return launch


class _Prepared:
    """Loads the kernels of a module on a device before the first launch there, because the driver may refuse to load them
    during a graph capture. Loading them on other devices would create contexts of hundreds of megabytes."""

    def __init__(self, module: Any, sku: KernelSku) -> None:
        self._module, self._sku = module, sku
        self._devices: set[int] = set()

    def on(self, device: int | None) -> None:
        if device is None or device in self._devices:
            return
        import torch

        what = f"kernel {self._sku.id} is not loaded on cuda:{device}"
        moment.refuse_capture(self._sku.op, what, torch.device("cuda", device))
        try:
            self._module.prepare(device)
        except RuntimeError as error:
            raise device_error(self._sku, error) from error
        self._devices.add(device)


def nothing_to_do(args: object, workspace: object) -> None:
    """The launcher of an empty batch, which has no output; CUDA refuses a grid of zero CTAs."""
