"""CUDA kernels around the products of experts: routing, sorting, gathering and combining."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from opfacade.backends.cuda.composed import composed_on_cuda
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, Fact
from opfacade.core.candidate import Reason
from opfacade.core.guarantee import EXACT, ErrorModel, PrecisionGuarantee
from opfacade.core.target import Target
from opfacade.plans.moe import (
    FusedMoeDescriptor,
    MoeCombineDescriptor,
    MoeGatherDescriptor,
    MoeSortDescriptor,
    RouteDescriptor,
)

_KERNELS = "tests/families/moe/test_moe_kernels.py"
_EVIDENCE = (
    "tests/families/moe/test_moe_gpu.py::test_runs_repeat_bitwise",
    f"{_KERNELS}::test_it_keeps_its_guarantee",
    f"{_KERNELS}::test_bits_of_a_row_do_not_depend_on_the_batch",
    *REPEATS,
)
_ROUNDED = {"least": 2.0**-149, "u_acc": 2.0**-24}


def _promise(math: str, model: str, constants: Mapping[str, float], by_row: bool = True) -> PrecisionGuarantee:
    """Each row is computed separately, in a fixed order; a sort processes the whole batch."""
    return PrecisionGuarantee(
        math_precision=math,
        accumulator="none" if math == "integer" else "f32",
        deterministic=True,
        bit_stable_on_same_hardware=True,
        batch_invariant="composition" if by_row else "none",
        error_model=ErrorModel(id=model, constants=tuple(sorted(constants.items()))),
        evidence=_EVIDENCE,
    )


def _router(d: RouteDescriptor) -> Mapping[str, Fact]:
    names = ("experts", "top_k", "dtype", "score", "bias", "correction", "groups", "top_groups", "group_score", "renormalise")
    found = {name: getattr(d, name) for name in (*names, "ids_given", "by_logits", "num_valid")}
    return found | {"replicas": d.most_replicas > 0}


def _unrouted(d: RouteDescriptor, target: Target) -> Iterator[Reason]:
    if d.loads:
        yield Reason(
            "OPF-S003", "loads", "True", "False", "The differences of indptr of moe_sort are the loads of its experts."
        )


def _routed(d: RouteDescriptor) -> PrecisionGuarantee:
    """Physical ids depend on the index of a row."""
    return _promise("f32", "route-f32", {"least": 2.0**-148, "score": 2.0**-20, "u": 2.0**-23}, d.most_replicas == 0)


_ROUTE = CudaKernel(
    descriptor=RouteDescriptor,
    template="moe/route",
    size_free=True,
    impl="warp_rows",
    accepts=_unrouted,
    constants=_router,
    dtypes=lambda d: (("logits", d.dtype),),
    in_dtypes=("dtype",),
    scalars=lambda d: (d.scale,),
    guarantee=lambda d, target: _routed(d),
)

_SORT = CudaKernel(
    descriptor=MoeSortDescriptor,
    template="moe/moe_sort",
    size_free=True,
    impl="one_cta",
    constants=lambda d: {"local": d.local},
    dtypes=lambda d: (("ids", "i32"),),
    scalars=lambda d: (d.first_expert,),
    guarantee=_promise("integer", EXACT, {}, by_row=False),
)

_GATHER = CudaKernel(
    descriptor=MoeGatherDescriptor,
    template="moe/moe_gather",
    size_free=True,
    impl="pieces",
    constants=lambda d: {"dtype": d.dtype} | {name: True for name in ("num_valid", "weighted") if getattr(d, name)},
    dtypes=lambda d: (("x", d.dtype),),
    in_dtypes=("dtype",),
    guarantee=lambda d, target: _promise("f32", "moe-f32", _ROUNDED) if d.weighted else _promise("integer", EXACT, {}),
)

_COMBINE = CudaKernel(
    descriptor=MoeCombineDescriptor,
    template="moe/moe_combine",
    size_free=True,
    impl="pieces",
    constants=lambda d: {"dtype": d.dtype, "top_k": d.top_k} | {name: True for name in ("add", "weighted") if getattr(d, name)},
    dtypes=lambda d: (("x", d.dtype),),
    in_dtypes=("dtype",),
    scalars=lambda d: (d.scale,),
    guarantee=_promise("f32", "moe-f32", _ROUNDED),
)

_LAYER = composed_on_cuda(
    FusedMoeDescriptor,
    lambda d: (("x", d.dtype),) if d.scaling is None else (("weight", "f8_e4m3"), ("x", d.dtype)),
    lambda d: ((("halves", d.halves),) if d.gated else ()) + ((("scale", d.scaling),) if d.scaling is not None else ()),
)

CANDIDATES = (*(one.candidate for one in (_ROUTE, _SORT, _GATHER, _COMBINE)), _LAYER)
