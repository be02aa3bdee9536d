"""Composite plans on CUDA. The host library checks their calls, but replays none: it records launches of one kernel library for
one Args object, and each step has its own of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import writes_nothing
from opfacade.backends.cuda.host.direct import Direct, KernelCall
from opfacade.core.candidate import Candidate, FastPaths, Launcher, Operands, check_only
from opfacade.core.descriptor import Descriptor
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans._composites.composed import Pairs, composed
from opfacade.plans._composites.growing import Stepwise

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.core.descriptor import Args


D = TypeVar("D", bound="Descriptor[Any]")


def composed_on_cuda(
    descriptor: type[D], dtypes: Callable[[D], Pairs], facts: Callable[[D], Pairs], size_free: bool = False
) -> Candidate:
    """dtypes, facts, size_free: as in `composed`. Steps need no check: their operands are checked operands of the call, or
    tensors between steps."""
    plain = composed(descriptor, "cuda", dtypes, facts, impl="kernels", size_free=size_free)

    def launcher(problem: Stepwise[Any], target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
        if writes_nothing(problem):
            return support.nothing_to_do
        run = plain.launcher(problem, target, sku, allow_build)
        learners: list[Callable[[Args], None]] = []

        def launch(args: Args, workspace: Tensor | None) -> None:
            run(args, workspace)
            for learn in learners:
                learn(args)

        def fast_paths(workspace_bytes: int, operands: Operands) -> FastPaths:
            made = _sound(problem, allow_build, workspace_bytes, operands)
            learners.append(made.learn)
            return check_only(made.paths)

        def refuse_unsound(workspace_bytes: int, operands: Operands) -> Callable[[Args, Tensor | None], None]:
            return _sound(problem, allow_build, workspace_bytes, operands).refuse_unsound

        launch.fast_paths, launch.refuse_unsound = fast_paths, refuse_unsound  # type: ignore[attr-defined]
        return launch

    return replace(plain, launcher=launcher)


def _sound(problem: Stepwise[Any], allow_build: bool, workspace_bytes: int, operands: Operands) -> Direct:
    """A `Direct` that only checks: it launches no kernel."""
    from opfacade import jit

    host = jit.load(jit.HOST, allow_build=allow_build)
    return Direct(host, KernelCall(_nothing, (), True, workspace_bytes), problem, operands)


def _nothing(*_: object) -> None:
    """Replaces a kernel's `run`."""
