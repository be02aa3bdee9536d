"""Plan: a descriptor bound to the chosen candidate. Immutable, thread-safe, reusable for any number of runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NoReturn, TypeVar, get_args

from opfacade import env, telemetry, validation
from opfacade.base import capture, notices
from opfacade.base.fork_lock import ForkLock
from opfacade.core import build_errors, opaque, written
from opfacade.core.call_issues import call_issues
from opfacade.core.candidate import NO_FAST_PATHS, Candidate, Launcher, fast_paths_of, unchecked
from opfacade.core.checks import require_memory
from opfacade.core.construction import filler, immutable, not_called
from opfacade.core.descriptor import Args, ArgsT, Descriptor, operands_of
from opfacade.core.guarantee import PrecisionGuarantee
from opfacade.core.launch_errors import BegunError, device_error
from opfacade.core.operands import TensorSpec, bytes_of
from opfacade.core.preference import Preference
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.core.verdict import SOUND, Verdict
from opfacade.errors import FallbackWarning, Issue, WorkspaceError, from_issues
from opfacade.observe import crosscheck, instruments
from opfacade.select.explanation import answer
from opfacade.select.plan_series import PlanSeries, series_of
from opfacade.select.selection import Option, choose, count_refusals, fallback
from opfacade.validation import capture_and_fork as moment

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

_MAX_CACHED = 4096

PlanT = TypeVar("PlanT", bound="Plan[Any]")
_FACTS = (
    "descriptor", "handle", "workspace_size", "_operands", "_guard", *PlanSeries.NAMES, "_replay", "_fast", "_launch", "_lock",
    "_wrote",
)  # fmt: skip
_UNLOADED = (*NO_FAST_PATHS, None, None, written.nothing)
_selected: dict[Any, Plan[Any]] = {}
_selecting = ForkLock()


def forget_selections() -> None:
    """Makes the next `select` select again, because measurements have changed. Existing plans stay."""
    with _selecting:
        _selected.clear()


def _remember(key: object, plan: Plan[Any]) -> None:
    try:
        _selected[key] = plan  # one atomic statement
    except TypeError:  # an unhashable value bypassed validation and is checked each time
        return
    if len(_selected) > _MAX_CACHED:
        with _selecting, suppress(RuntimeError, StopIteration):  # another thread changed the mapping: it is cut later
            _selected.pop(next(iter(_selected)), None)


@opaque.methods("select", "can_implement", "compile", "run")
class Plan(Generic[ArgsT]):
    """`select` chooses, `can_implement` checks a call, `compile` builds ahead of time, `run` executes.

    A named plan (`class BatchPagedDecodePlan(Plan[BatchPagedDecodeArgs])`) accepts only its own descriptors; `Plan`
    accepts all. Attributes: descriptor, preference, target, sku, workspace_size (exact bytes), handle (see core.plan_handles).
    """

    __slots__ = (
        "__weakref__", "_admitted", "_candidate", "_count", "_count_select", "_crosscheck", "_fast", "_guard", "_launch",
        "_lock", "_operands", "_replay", "_wrote", "descriptor", "handle", "preference", "sku", "target",
        "workspace_size",
    )  # fmt: skip
    _args_type: ClassVar[type[Args] | None] = None

    descriptor: Descriptor[ArgsT]
    handle: int
    preference: Preference
    target: Target
    sku: KernelSku
    workspace_size: int
    _admitted: bool
    _candidate: Candidate
    _count: Callable[[], int]
    _count_select: Callable[[], int]
    _crosscheck: float
    _fast: Callable[[Any, Any, bool], bool]
    _guard: validation.Guard | None
    _launch: Launcher | None
    _lock: ForkLock | None
    _operands: Mapping[str, TensorSpec]
    _replay: Callable[..., Any]
    _wrote: Callable[[Any], None]

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for base in getattr(cls, "__orig_bases__", ()):
            for arg in get_args(base):
                if isinstance(arg, type) and issubclass(arg, Args):
                    cls._args_type = arg

    def __init__(self, *_: object, **__: object) -> None:
        raise not_called(type(self).__name__)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise immutable(type(self).__name__, f"set {name}")

    def __delattr__(self, name: str) -> NoReturn:
        raise immutable(type(self).__name__, f"delete {name}")

    @classmethod
    def select(
        cls: type[PlanT], descriptor: Descriptor[Any], prefer: Preference | None = None, target: Target | None = None
    ) -> PlanT:
        """The plan for a descriptor on a target (default: the current CUDA device, else the CPU).

        Only chooses: uses no tensor and no compiler. Raises DescriptorError for an invalid descriptor, UnsupportedError with
        the reasons of every candidate if none fits, ArgumentTypeError for an object that is not a descriptor of this plan."""
        key = (cls, descriptor, prefer, target if target is not None else Target.current())
        try:
            plan = _selected.get(key)
        except TypeError:  # unhashable, so not a valid descriptor: the slow path raises the reason
            plan = None
        if plan is None:
            plan = cls._select(descriptor, prefer, key[3])
            _remember(key, plan)
        plan._count_select()
        if telemetry._watched:
            telemetry.selected(plan)
        return plan  # type: ignore[return-value]

    @classmethod
    def _select(cls: type[PlanT], descriptor: Descriptor[Any], prefer: Preference | None, target: Target) -> PlanT:
        checked, preference, _, options = answer(cls.__name__, descriptor, prefer, target, None, cls._args_type, False)
        option = options[0]
        if option.reasons:
            count_refusals(checked.op, options)
            option = choose(checked, target, options)
        if option.candidate.backend == "reference" and not target.is_cpu and not preference.names_reference:
            assert option.sku is not None
            telemetry.count_fallback(option.sku)
            notices.warn(fallback(checked, target, options), FallbackWarning, 3)
        return cls._make(checked, preference, target, option)

    @classmethod
    def _make(cls: type[PlanT], descriptor: Descriptor[Any], preference: Preference, target: Target, option: Option) -> PlanT:
        assert option.sku is not None
        assert option.workspace_size is not None
        plan = object.__new__(cls)
        opaque.apply()
        candidate, settings = option.candidate, env.of_plan()
        series = series_of(preference, target, option.sku, candidate, settings)
        guard = validation.guard(settings.validate, descriptor, option.sku, preference.jit == "build")
        operands = operands_of(descriptor) if candidate.needs is None else candidate.operands(descriptor)
        handle = series.handles.give(plan, descriptor)
        _fill(plan, (descriptor, handle, option.workspace_size, operands, guard, *series.facts, *_UNLOADED))
        return plan

    @property
    def precision_guarantee(self) -> PrecisionGuarantee:
        return self.sku.precision_guarantee

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sku.id})"

    def __reduce__(self) -> Any:
        return (type(self).select, (self.descriptor, self.preference, self.target))

    def can_implement(self, args: ArgsT, workspace: Tensor | None = None) -> Verdict:
        """All problems of a call, found without access to device memory. Truthy if `run` would accept it (meta: if aligned)."""
        self.check()
        if self._fast(args, workspace, False):
            return SOUND
        issues = self._issues(args, workspace)
        return Verdict(tuple(issues)) if issues else SOUND

    def check(self) -> None:
        """Raises errors that the device found in the index tensors of earlier runs (OPFACADE_VALIDATE=indices). It does not
        wait: synchronise first to include runs in flight."""
        if self._guard is not None:
            self._guard.check()

    def _issues(self, args: ArgsT, workspace: Tensor | None) -> list[Issue]:
        return call_issues(self, args, workspace)

    def compile(self) -> None:
        """Builds the kernels of this plan, publishes them in the cache, and loads them if the device is present.

        Raises JitDisabledError if a kernel is missing and Preference(jit="never") or OPFACADE_DISABLE_JIT forbids building."""
        specs = self.jit_specs
        if specs:
            from opfacade import jit

            with build_errors.of_problem(self.descriptor):
                for spec in specs:
                    jit.build_for_plan(spec, allow_build=self.preference.jit == "build", label=self.sku.id)
        if self.sku.backend == "reference" or Target.current().arch == self.target.arch:
            self._load()

    @property
    def jit_spec(self) -> JitSpec | None:
        """The kernel of this plan; None if it has none or several."""
        make = self._candidate.jit_spec
        return None if make is None else make(self.descriptor, self.target)

    @property
    def jit_specs(self) -> tuple[JitSpec, ...]:
        """All kernels of this plan, including those of its parts, without duplicates."""
        return self._candidate.jit_specs(self.descriptor, self.target)

    @property
    def cache_state(self) -> str:
        """Whether all kernels and the host library are built: "shared", "private" (docs/cache.md), "absent"; "none" without."""
        from opfacade import jit

        return jit.cache_state_for_plan(*specs) if (specs := self.jit_specs) else "none"

    def _load(self, device: torch.device | None = None) -> Launcher:
        with _selecting:  # few of the plans that are selected are run
            lock = self._lock or ForkLock()
            object.__setattr__(self, "_lock", lock)
        with telemetry.held_back(), lock, build_errors.of_problem(self.descriptor), capture.current(device):
            if self._launch is not None:
                return self._launch
            if self.sku.backend == "cuda":
                moment.refuse_capture(self.sku.op, f"kernel {self.sku.id} is not loaded")
            allow = self.preference.jit == "build"
            bare: list[Launcher] = []

            def make() -> Launcher:
                bare[:] = [self._candidate.launcher(self.descriptor, self.target, self.sku, allow)]
                return bare[0]

            launch = instruments.launcher(make, self.descriptor, self.sku)
            launch = crosscheck.wrap(launch, self._crosscheck, (self.descriptor, self.sku, self.target))
            if self._guard is not None:
                launch = self._guard.wrap(launch)
            telemetry.stats(self.sku.id).loads.add()
            self._take_fast_paths(bare[0], wrapped=launch is not bare[0])
            launch = unchecked(bare[0], launch, self.workspace_size, self._operands) if self._admitted else launch
            object.__setattr__(self, "_wrote", written.counter(self._operands, self.descriptor.args_type.__slots__))
            object.__setattr__(self, "_launch", launch)
        telemetry.emit("load", sku=self.sku.id)  # outside the lock, because a sink may run this plan
        return launch

    def _take_fast_paths(self, bare: Launcher, wrapped: bool) -> None:
        paths = NO_FAST_PATHS if self._admitted else fast_paths_of(bare, wrapped, self.workspace_size, self._operands)
        object.__setattr__(self, "_fast", paths.fast)
        object.__setattr__(self, "_replay", paths.replay)

    def run(self, args: ArgsT, workspace: Tensor | None = None) -> None:
        """Writes the outputs of one call. It does not synchronise or read the device, and allocates only a workspace that is
        needed and not given. Raises the first issue of `can_implement` before anything is written."""
        in_full = telemetry._watched or moment.forked
        try:
            if in_full or (self._replay(id(args), id(workspace)) and not self._fast(args, workspace, True)):
                self._run_checked(args, workspace)
            else:
                self._count()
        except BegunError as error:
            raise device_error(self.sku, error) from error
        self._wrote(args)

    def _run_checked(self, args: ArgsT, workspace: Tensor | None) -> None:
        if not self._admitted:
            self._admit(args, workspace)
        if moment.forked and self.sku.backend != "reference":
            moment.refuse_fork(self.descriptor.op)
        launch = self._launch or self._load(capture.device_of(args))
        if workspace is None and self.workspace_size:
            workspace = self._allocate(args)
        self._count()
        if telemetry._watched:
            telemetry.ran(self, args)
        launch(args, workspace)

    def _admit(self, args: ArgsT, workspace: Tensor | None) -> None:
        verdict = self.can_implement(args, workspace)
        if not verdict:
            error = from_issues(self.descriptor.op, "run", verdict.issues)
            if isinstance(error, WorkspaceError):
                error.needed, error.got = self.workspace_size, bytes_of(workspace)
            raise error
        require_memory(self.descriptor.op, getattr(args, next(iter(self._operands))))

    def _allocate(self, args: ArgsT) -> Tensor:
        import torch

        return torch.empty(self.workspace_size, dtype=torch.uint8, device=getattr(args, next(iter(self._operands))).device)


_fill = filler(Plan, _FACTS)
