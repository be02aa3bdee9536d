"""Candidate: one implementation that a backend offers for a descriptor type."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade.core.descriptor import Descriptor, operands_of
from opfacade.core.operands import TensorSpec, has_rules
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

Operands = Mapping[str, TensorSpec]
COMPILER_TOO_OLD = "OPF-S018"  # code of a reason caused by this machine's compiler, not by the descriptor or target
Launcher = Callable[[Any, Any], None]  # (args, workspace or None) -> None

Offer = tuple["tuple[Reason, ...]", "KernelSku | None", "int | None"]  # reasons; SKU and workspace if there are none

WORKSPACE_ALIGNMENT = 256


# Messages of refusals caused by a preference; all other refusals name the field and its allowed values.
_WISHES = {
    "OPF-S010": "backend is {got}, you asked for {allowed}",
    "OPF-S011": "{got} is forbidden, you asked for {allowed}",
    "OPF-S012": "its SKU is not the one you pinned",
    "OPF-S014": "workspace is {got}, you asked for {allowed}",
    "OPF-S015": "SKU {got} is not {allowed}",
    "OPF-S016": "SKU {got} is not {allowed}",
    "OPF-S024": "its run may {got}, and {name} is False",
    "OPF-S020": "{name} is {got}, you asked for {allowed}",
}


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason against a candidate, as data: a stable code, the field, its value, the allowed values, a hint."""

    code: str
    field: str
    got: str
    allowed: str
    hint: str = ""

    def __str__(self) -> str:
        hint = f" {self.hint}" if self.hint else ""
        said = _WISHES.get(self.code, "{field}={got} (allowed: {allowed})")
        name = self.field.rpartition(".")[2]
        return f"{said.format(field=self.field, name=name, got=self.got, allowed=self.allowed)}.{hint} [{self.code}]"

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One implementation of one descriptor type.

    declines: returns every reason against the candidate; the other functions are called only if there is none.
    workspace: its size in bytes, exact. launcher: returns the function that `run` calls; may load the kernel, and build it if
    `allow_build`. jit_spec: the kernel to compile; None if there is none. parts: for a candidate of several kernels, all of
    them, instead of jit_spec. config: "" for the default; otherwise the name of a tuning config: the same implementation with
    other tiles, stages or splits, which only a pin or a measurement selects. The SKU of a config must differ from the
    default's.
    learn: `tune` calls it on the GPU that it measures, before it lists tuning configs; it stores the facts about a problem that
    the configs depend on.
    allocates, synchronises: whether a run may allocate device memory besides its workspace, or wait for the device.
    needs: (descriptor, its operands) -> the operands as this implementation takes them, with stricter strides or alignment;
    None if it takes all operands that the descriptor permits. Calls are checked against these operands.
    size_free: whether refusals, SKU and workspace are the same for all problems of one specialization key.
    by_rows: (problem, target) -> a function of the number of rows: of problems that differ in their rows alone, those with
    equal results have the same refusals, SKU and workspace; None if rows determine more.
    sized: (problem, target) -> a function of any problem with the same `refused_alike`, which has computed all that no size
    changes; None if there is none for this problem.
    """

    backend: str
    impl: str
    descriptor: type[Descriptor[Any]]
    declines: Callable[[Any, Target], Sequence[Reason]]
    sku: Callable[[Any, Target], KernelSku]
    workspace: Callable[[Any, Target], int]
    launcher: Callable[[Any, Target, KernelSku, bool], Launcher]
    jit_spec: Callable[[Any, Target], JitSpec] | None = None
    config: str = ""
    needs: Callable[[Any, Operands], Operands] | None = None
    parts: Callable[[Any, Target], tuple[JitSpec, ...]] | None = None
    learn: Callable[[Any, Target], None] | None = None
    allocates: bool = False
    synchronises: bool = False
    size_free: bool = False
    by_rows: Callable[[Any, Target], Callable[[int], Hashable] | None] | None = None
    sized: Callable[[Any, Target], Callable[[Any], Offer] | None] | None = None

    @property
    def compiles(self) -> bool:
        """Whether the candidate has a kernel to compile."""
        return self.jit_spec is not None or self.parts is not None

    def jit_specs(self, descriptor: Descriptor[Any], target: Target) -> tuple[JitSpec, ...]:
        """Every kernel to compile, each once."""
        if self.parts is not None:
            return self.parts(descriptor, target)
        return () if self.jit_spec is None else (self.jit_spec(descriptor, target),)

    def operands(self, descriptor: Descriptor[Any]) -> Operands:
        """The operands that a call of this implementation takes."""
        known = operands_of(descriptor)
        return known if self.needs is None else self.needs(descriptor, known)

    @property
    def name(self) -> str:
        """The name in `explain`."""
        config = f"[{self.config}]" if self.config else ""
        return f"{self.backend}/{self.impl}{config}"

    @property
    def habits(self) -> str:
        """Text for `explain` about a run that may allocate or wait."""
        said = ", may allocate" if self.allocates else ""
        return f"{said}, may wait for the device" if self.synchronises else said

    @property
    def names(self) -> frozenset[str]:
        """Names that forbid this candidate: backend, implementation, backend/implementation, and name. SKU ids are checked
        elsewhere."""
        return frozenset({self.backend, self.impl, f"{self.backend}/{self.impl}", self.name})


def with_config(
    base: Candidate, config: str, change: Callable[[Any], Any | None], facts: Mapping[str, bool | int | str]
) -> Candidate:
    """A tuning config of `base`: the same kernel code for a changed descriptor, such as another split.

    change: maps a descriptor to its replacement, with the same operands; None if the config does not apply. facts: additions to
    the SKU's spec that identify the config. If a config is another binary, construct a Candidate instead.
    """

    other = lru_cache(maxsize=1024)(change)  # called by each function below
    named = lru_cache(maxsize=256)(lambda plain: _with_facts(plain, facts))

    def declines(descriptor: object, target: Target) -> Sequence[Reason]:
        changed = other(descriptor)
        if changed is None:
            return (Reason("OPF-S017", "config", config, "a descriptor that it means something for"),)
        reasons = base.declines(changed, target)
        if reasons or base.declines(descriptor, target):
            return reasons
        if named(base.sku(changed, target)).id == base.sku(descriptor, target).id:
            return (Reason("OPF-S017", "config", config, "a descriptor for which it is not the default"),)
        return ()

    jit_spec, parts = base.jit_spec, base.parts
    return replace(
        base,
        declines=declines,
        sku=lambda descriptor, target: named(base.sku(other(descriptor), target)),
        workspace=lambda descriptor, target: base.workspace(other(descriptor), target),
        launcher=lambda descriptor, target, sku, allow: base.launcher(other(descriptor), target, sku, allow),
        jit_spec=None if jit_spec is None else lambda descriptor, target: jit_spec(other(descriptor), target),
        parts=None if parts is None else lambda descriptor, target: parts(other(descriptor), target),
        config=config,
        size_free=False,
        by_rows=None,
        sized=None,
    )


def _with_facts(sku: KernelSku, facts: Mapping[str, bool | int | str]) -> KernelSku:
    """The SKU with more facts in its spec."""
    spec = tuple(sorted({**dict(sku.spec), **facts}.items()))
    return sku.model_copy(update={"spec": spec}).revalidated()


class FastPaths(NamedTuple):
    """Fast paths for calls that resemble an already checked call. A refusal falls through to the next slower path; neither path
    raises.

    replay: takes (id(args), id(workspace)); falsy if the call ran. fast: takes (args, workspace, launch); truthy if the call is
    valid, and then it ran if `launch`.
    """

    replay: Callable[..., Any]
    fast: Callable[[Any, Any, bool], bool]


NO_FAST_PATHS = FastPaths(lambda *_: True, lambda *_: False)


def unchecked(bare: Launcher, launch: Launcher, workspace_bytes: int, operands: Operands) -> Launcher:
    """`launch` for calls without a check. Bindings trust their operands, so the host library refuses operands that would crash
    a binding."""
    make = getattr(bare, "refuse_unsound", None)
    if make is None:
        return launch
    refuse = make(workspace_bytes, operands)

    def refusing(args: object, workspace: object) -> None:
        refuse(args, workspace)
        launch(args, workspace)

    return refusing


def fast_paths_of(launch: Launcher, wrapped: bool, workspace_bytes: int, operands: Operands) -> FastPaths:
    """The fast paths that a launcher offers; only the check, if the launcher is wrapped by an instrument that must see each
    call."""
    make = getattr(launch, "fast_paths", None)
    if make is None or has_rules(operands):
        return NO_FAST_PATHS
    paths: FastPaths = make(workspace_bytes, operands)
    return check_only(paths) if wrapped else paths


def check_only(paths: FastPaths) -> FastPaths:
    """The check of these paths, without a launch."""
    return FastPaths(NO_FAST_PATHS.replay, lambda args, workspace, launch: not launch and paths.fast(args, workspace, False))
