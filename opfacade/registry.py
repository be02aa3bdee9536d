"""Candidate, what a backend offers for a descriptor; and where candidates are found.

The file tree is the registry: `backends/<backend>/<family>.py` ends in a tuple CANDIDATES.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from opfacade import strict_json
from opfacade.descriptor import Descriptor, operands_of
from opfacade.errors import DescriptorError
from opfacade.model import not_strict
from opfacade.operands import TensorSpec
from opfacade.shown import shown
from opfacade.sku import KernelSku
from opfacade.target import Target

if TYPE_CHECKING:
    from opfacade.jit.spec import JitSpec

# In order of preference: the first candidate without a reason against it is chosen.
BACKENDS = ("cuda", "reference")

WORKSPACE_ALIGNMENT = 256

Operands = Mapping[str, TensorSpec]
Launcher = Callable[[Any, Any], None]  # (args, workspace or None) -> None
# (descriptor, sku, target, lengths of requests, bytes of the problem) -> what `cost_blocks.Predicted` holds
EstimateOf = Callable[[Any, KernelSku, Target, Any, float], Any]


class FastPaths(NamedTuple):
    """Paths for calls like ones that passed the full check. A refusal falls through to the next slower path; neither raises.

    replay: (id(args), id(workspace)), falsy where the call was made. fast: (args, workspace, launch), truthy where the call is
    sound; with `launch` it was then also made.
    """

    replay: Callable[..., Any]
    fast: Callable[[Any, Any, bool], bool]


NO_FAST_PATHS = FastPaths(lambda *_: True, lambda *_: False)


def unchecked(bare: Launcher, launch: Launcher, workspace_bytes: int, operands: Operands) -> Launcher:
    """`launch` for calls without a check. Bindings trust their operands, so the host library refuses what they cannot take."""
    make = getattr(bare, "refuse_unsound", None)
    if make is None:
        return launch
    refuse = make(workspace_bytes, operands)

    def refusing(args: Any, workspace: Any) -> None:
        refuse(args, workspace)
        launch(args, workspace)

    return refusing


def fast_paths_of(launch: Launcher, wrapped: bool, workspace_bytes: int, operands: Operands) -> FastPaths:
    """The fast paths that a launcher offers. Where it is wrapped in something that must see each call, only the check."""
    make = getattr(launch, "fast_paths", None)
    if make is None:
        return NO_FAST_PATHS
    paths: FastPaths = make(workspace_bytes, operands)
    if not wrapped:
        return paths
    return FastPaths(NO_FAST_PATHS.replay, lambda args, workspace, launch: not launch and paths.fast(args, workspace, False))


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


@lru_cache(maxsize=1)
def families() -> tuple[str, ...]:
    """The operator families: the modules of `opfacade.plans`."""
    package = import_module("opfacade.plans")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


@lru_cache(maxsize=256)
def candidates_for(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """Every candidate for a descriptor type that may be chosen by default, in order of preference."""
    return tuple(candidate for candidate in variants_for(descriptor) if not candidate.variant)


@lru_cache(maxsize=256)
def variants_for(descriptor: type[Descriptor[Any]]) -> tuple[Candidate, ...]:
    """Every candidate for a descriptor type, in order of preference; behind all defaults their variants."""
    found: list[Candidate] = []
    for backend in BACKENDS:
        name = f"opfacade.backends.{backend}.{descriptor.family()}"
        # A family that a backend lacks is absent; one that fails to import is broken, and must say so.
        if find_spec(name) is not None:
            found += [c for c in import_module(name).CANDIDATES if c.descriptor is descriptor]
    return tuple(sorted(found, key=lambda candidate: bool(candidate.variant)))


@lru_cache(maxsize=1)
def names_to_forbid() -> frozenset[str]:
    """The names of all candidates of all ops."""
    return frozenset[str]().union(*(c.names for kind in descriptor_types().values() for c in variants_for(kind)))


def crosscheck() -> Any:
    """The cross-check, which lies above plans and is therefore reached by name, as backends are."""
    return import_module("opfacade.crosscheck")


def measurements() -> Any:
    """The table of measurements, which are made with plans and therefore lie above them."""
    return import_module("opfacade.autotune_table")


def manifest() -> Any:
    """Locked SKUs, which are made from selections and therefore lie above them."""
    return import_module("opfacade.manifest")


@lru_cache(maxsize=1)
def descriptor_types() -> dict[str, type[Descriptor[Any]]]:
    """Every descriptor type by its op name."""
    types: dict[str, type[Descriptor[Any]]] = {}
    for family in families():
        for example in import_module(f"opfacade.plans.{family}").EXAMPLES:
            types[example.op] = type(example)
    return types


def examples() -> tuple[Descriptor[Any], ...]:
    """The EXAMPLES of all families: what is compiled in CI, warmed up by default, and held to its guarantee."""
    return tuple(e for family in families() for e in import_module(f"opfacade.plans.{family}").EXAMPLES)


def load_descriptor(text: str | bytes) -> Descriptor[Any]:
    """A descriptor of any type from its JSON; its field `op` says which. DescriptorError for anything else."""
    try:
        kind = descriptor_types()[strict_json.loads(text)["op"]]
    except ValueError as error:
        raise not_strict("load_descriptor", error) from error
    except (KeyError, TypeError) as error:
        known = ", ".join(sorted(descriptor_types()))
        message = f"descriptor: op expected one of {known}, got {shown(text)}. [OPF-D020]"
        raise DescriptorError(message, code="OPF-D020", stage="descriptor") from error
    return kind.model_validate_json(text)
