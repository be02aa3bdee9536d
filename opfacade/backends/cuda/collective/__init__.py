"""Ops over several ranks on GPUs: NCCL transfers bytes, and every rank computes the same results from them, in the order of
ranks.

So sums have the same order as in the reference, whatever NCCL does. Our own kernels process the rows after a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from opfacade.backends.cuda import support
from opfacade.backends.cuda.collective import following, merge_across, sample_across, sum_fold
from opfacade.backends.cuda.collective.following import plan_of
from opfacade.backends.cuda.collective.promise import bounded, in_f32, with_kernel
from opfacade.backends.reference import _all_reduce_norm as _normed
from opfacade.backends.reference import _sample_across as _drawn
from opfacade.backends.reference import collective as _in_torch
from opfacade.backends.reference.inference import in_inference_mode
from opfacade.backends.reference.joined import filled_on_failure, gathered, peers_of
from opfacade.core.any_size import at_any_size
from opfacade.core.candidate import Candidate, Launcher, Reason
from opfacade.core.descriptor import Args, Descriptor
from opfacade.core.joined import Across, JoinedArgs
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target
from opfacade.plans.collective import (
    AllReduceNormArgs,
    AllReduceNormDescriptor,
    MergeAcrossArgs,
    MergeAcrossDescriptor,
    SampleAcrossArgs,
    SampleAcrossDescriptor,
)

if TYPE_CHECKING:
    from torch import Tensor

_NAME, _PEERS = "nccl", "peers"
_ABORTS = "tests/distributed/test_nccl_gpu.py::test_a_rank_that_does_not_come_is_named_and_the_process_goes_on"
_ENDS = (
    "tests/families/collective/test_sum_fold_kernel.py::test_a_rank_that_does_not_come_or_differs_is_named_and_outputs_say_so"
)
_MERGES = "tests/families/collective/test_merge_kernel.py::test_every_rank_has_the_bits_of_one_gpu"
_BITS = "tests/families/collective/test_sum_fold_kernel.py::test_every_rank_has_the_bits_of_one_gpu"
_REFERENCE = {candidate.descriptor: candidate for candidate in _in_torch.CANDIDATES}


def _declines(descriptor: Descriptor[Any], target: Target) -> Iterator[Reason]:
    yield from support.arch_reasons(target)
    if getattr(descriptor, "world", 1) == 1:
        yield Reason("OPF-S003", "world", "1", "2 or more ranks: one exchanges nothing")


def _declines_counts(descriptor: AllReduceNormDescriptor, target: Target) -> Iterator[Reason]:
    yield from _declines(descriptor, target)
    if descriptor.num_valid and (descriptor.two_shot or descriptor.norm == "none"):
        yield Reason("OPF-S003", "num_valid", "True", "False in two steps or without a norm: the host does not read it")


def _as_in_torch(base: Candidate) -> Candidate:
    """A candidate that runs the functions of the reference on GPU tensors."""

    return replace(
        base,
        backend="cuda",
        impl=_NAME,
        declines=at_any_size(_declines),
        sku=partial(_over_nccl, base),
        parts=following.with_round(lambda d, target: ()),
    )


def _over_nccl(base: Candidate, d: Descriptor[Any], target: Target) -> KernelSku:
    known = base.sku(d, target)
    promise = bounded(known.precision_guarantee, "abort", (_ABORTS,))
    return known.model_copy(update={"backend": "cuda", "impl": _NAME, "precision_guarantee": promise}).revalidated()


def _sku(d: AllReduceNormDescriptor, target: Target) -> KernelSku:
    """The SKU, whose guarantee is that of the kernel after the sum."""
    known, behind = _over_nccl(_REFERENCE[AllReduceNormDescriptor], d, target), following.of_rows(d, d.total_num_rows)
    if behind is None:
        return known
    kernel = plan_of(behind, target).sku
    exact = known.precision_guarantee.error_model.id == "rank-sum-f32"
    promise = known.precision_guarantee if exact else in_f32(known, kernel, "all-reduce-fold-f32")
    return with_kernel(known, kernel, promise)


def _merge_sku(d: MergeAcrossDescriptor, target: Target) -> KernelSku:
    known, behind = _over_nccl(_REFERENCE[MergeAcrossDescriptor], d, target), following.of_states(d)
    if behind is None:
        return known
    kernel = plan_of(behind, target).sku
    return with_kernel(known, kernel, in_f32(known, kernel, "merge-across-f32"))


def _merge_launcher(d: MergeAcrossDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    behind = following.of_states(d)
    if behind is None:
        return _REFERENCE[MergeAcrossDescriptor].launcher(d, target, sku, allow_build)
    merge = plan_of(behind, target, allow_build)
    merge.compile()

    def run(d: MergeAcrossDescriptor, args: MergeAcrossArgs) -> None:
        states_o, states_lse = _with_sink(d, args, *_in_torch.states_of_all(d, args))
        o, lse = args.o.contiguous(), args.lse.contiguous()
        merge.run(behind.args_type(states_o=states_o, states_lse=states_lse, o=o, lse=lse))
        merge_across.keep(o, args.o)
        merge_across.keep(lse, args.lse)

    filled = filled_on_failure(run, spreads=True)
    return lambda args, workspace: filled(d, args)


def _with_sink(d: MergeAcrossDescriptor, args: MergeAcrossArgs, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The states, plus the sink as a state whose o is 0."""
    import torch

    sinks = _in_torch.kept_sinks(d, args)
    if sinks is None:
        return o, lse
    return torch.cat([o, o.new_zeros(1, *o.shape[1:])]), torch.cat([lse, sinks.expand(1, *lse.shape[1:])])


def _launcher(d: AllReduceNormDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    """Loads the kernels after the sum immediately, because a graph capture cannot load them."""
    for behind in following.of_sum(d):
        plan_of(behind, target, allow_build).compile()

    def fold(behind: Descriptor[Any], args: Args) -> None:
        plan_of(behind, target, allow_build).run(args)

    def summed(d: AllReduceNormDescriptor, args: AllReduceNormArgs) -> None:
        _normed.all_reduce_norm(d, args, fold)

    run = filled_on_failure(summed, spreads=True)

    def launch(args: AllReduceNormArgs, workspace: object) -> None:
        run(d, args)

    return launch


def _declines_peers(
    kernel: Callable[[Any, Target], Iterator[Reason]], d: Descriptor[Any], target: Target
) -> tuple[Reason, ...]:
    """kernel: yields the reasons against the kernel."""
    return _apart(d, target) or tuple(kernel(d, target))


@at_any_size
def _apart(d: Descriptor[Any], target: Target) -> Iterator[Reason]:
    yield from _declines(d, target)
    if target.links.kind == "none":
        yield Reason("OPF-S003", "target.links", "none", "pcie, nvlink", "Pass target=group.target.")


def _peers_sku(d: AllReduceNormDescriptor, target: Target) -> KernelSku:
    """The SKU, whose guarantee is that of the norm after the sum, because the kernel contains the norm's program."""
    known = _sku(d, target)
    spec = tuple(sorted((*known.spec, ("two_shot", d.two_shot), ("world", d.world))))
    return _of_peers(known, spec, _BITS)


def _of_peers(known: KernelSku, spec: support.SpecPairs, bits: str) -> KernelSku:
    base = known.precision_guarantee.model_copy(update={"evidence": (bits,)})
    update = {"impl": _PEERS, "spec": spec, "precision_guarantee": bounded(base, "kernel", (_ENDS, _ABORTS))}
    return known.model_copy(update=update).revalidated()


def _merge_peers_sku(d: MergeAcrossDescriptor, target: Target) -> KernelSku:
    known = _merge_sku(d, target)
    return _of_peers(known, known.spec, _MERGES)


def _peers_launcher(d: AllReduceNormDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    module = sum_fold.module_of(sum_fold.jit_spec(d, target), allow_build, sku.id)
    return _in_kernel(d, sum_fold.runner(d, target, module))


def _merge_peers_launcher(d: MergeAcrossDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    module = sum_fold.module_of(merge_across.jit_spec(d, target), allow_build, sku.id)
    return _in_kernel(d, merge_across.runner(d, module))


def _in_kernel(d: Across, run: Callable[[Any, Any], None]) -> Launcher:
    """A launcher whose kernel exchanges the data and fills the outputs on failure."""

    def call(d: Across, args: JoinedArgs) -> None:
        peers, group = peers_of(args)

        def launched() -> list[Tensor]:
            run(args, peers)
            return []  # the kernel writes the outputs

        group.on_gpus(d, launched)

    filled = filled_on_failure(call, by_kernel=True)
    return lambda args, workspace: filled(d, args)


_BY_PEERS = replace(
    _as_in_torch(_REFERENCE[AllReduceNormDescriptor]),
    impl=_PEERS,
    declines=partial(_declines_peers, sum_fold.declines),
    sku=_peers_sku,
    launcher=in_inference_mode(_peers_launcher),
    parts=following.with_round(lambda d, target: (sum_fold.jit_spec(d, target),)),
)

_MERGE_BY_PEERS = replace(
    _as_in_torch(_REFERENCE[MergeAcrossDescriptor]),
    impl=_PEERS,
    declines=partial(_declines_peers, merge_across.declines),
    sku=_merge_peers_sku,
    launcher=in_inference_mode(_merge_peers_launcher),
    parts=following.with_round(lambda d, target: (merge_across.jit_spec(d, target),)),
)


def _sample_sku(d: SampleAcrossDescriptor, target: Target) -> KernelSku:
    known = _over_nccl(_REFERENCE[SampleAcrossDescriptor], d, target)
    if not d.listed:
        return known
    by_kernel = ("lists", f"shard.{sample_across.LISTS_REVISION}")
    if not sample_across.draws(d):
        return known.model_copy(update={"spec": tuple(sorted((*known.spec, by_kernel)))}).revalidated()
    promise = in_f32(known, plan_of(sample_across.alone(d), target).sku, "race-f32")
    spec = tuple(sorted((*known.spec, by_kernel, ("draw", "listed"))))
    return known.model_copy(update={"spec": spec, "precision_guarantee": promise}).revalidated()


def _sample_launcher(d: SampleAcrossDescriptor, target: Target, sku: KernelSku, allow_build: bool) -> Launcher:
    """Kernels find the top tokens of a shard. A kernel draws from the lists of all ranks if it can; otherwise torch does."""
    if sample_across.draws(d):
        drawn_by_kernel = filled_on_failure(sample_across.drawer(d, target, allow_build, sku.id, _lists_of_all))
        return lambda args, workspace: drawn_by_kernel(d, args)
    lists = sample_across.lists(d, target, allow_build, sku.id) if d.listed else None

    def drawn(d: SampleAcrossDescriptor, args: SampleAcrossArgs) -> None:
        _drawn.sample_across(d, args, lists)

    filled = filled_on_failure(drawn)
    return lambda args, workspace: filled(d, args)


def _lists_of_all(d: SampleAcrossDescriptor, args: SampleAcrossArgs, own: Tensor) -> list[Tensor]:
    return gathered(d, args, own, _drawn.facts_of(args, d.total_num_rows))


def _candidate(base: Candidate) -> Candidate:
    made = _as_in_torch(base)
    if base.descriptor is AllReduceNormDescriptor:
        parts = following.kernels_of(following.of_sum)
        launcher = in_inference_mode(_launcher)
        return replace(made, declines=at_any_size(_declines_counts), sku=_sku, launcher=launcher, parts=parts)
    if base.descriptor is SampleAcrossDescriptor:
        parts = following.with_round(sample_across.specs)
        return replace(made, sku=_sample_sku, launcher=in_inference_mode(_sample_launcher), parts=parts)
    if base.descriptor is MergeAcrossDescriptor:
        parts = following.kernels_of(following.of_merge)
        return replace(made, sku=_merge_sku, launcher=in_inference_mode(_merge_launcher), parts=parts)
    return made


CANDIDATES = (_BY_PEERS, _MERGE_BY_PEERS, *(_candidate(base) for base in _in_torch.CANDIDATES))
