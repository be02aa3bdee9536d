"""Candidates declared as data: refusals, builds, guarantees and launches follow from the descriptor's fields."""

from pathlib import Path

import pytest
import torch

from opfacade import Target
from opfacade.backends.cuda import support
from opfacade.backends.cuda.declared import REPEATS, CudaKernel, repeatable, writes_nothing
from opfacade.backends.reference.declared import reference
from opfacade.core.guarantee import ErrorModel, PrecisionGuarantee
from opfacade.plans.cascade import MergeStatesArgs, MergeStatesDescriptor

SM_90A, SM_75, CPU = Target.parse("sm_90a"), Target.parse("sm_75"), Target.cpu()
PROMISE = PrecisionGuarantee(math_precision="f32", accumulator="f32", error_model=ErrorModel(id="merge-f32"))
KERNEL = CudaKernel(
    descriptor=MergeStatesDescriptor,
    template="cascade/merge_states",
    impl="rows",
    accepts={"dtype": ("f16",), "head_dim": (64, 128)},
    constants=("dtype", "head_dim", "in_place", "states"),
    dtypes={"o": "dtype"},
    guarantee=PROMISE,
)


def merge(**more):
    return MergeStatesDescriptor(
        **{"num_states": 2, "total_num_rows": 9, "num_heads": 3, "head_dim": 64, "dtype": "f16"} | more
    )


def test_fields_are_refused_by_name_with_what_would_be_accepted():
    candidate = KERNEL.candidate
    assert candidate.name == "cuda/rows"
    assert not candidate.declines(merge(), SM_90A)
    reasons = candidate.declines(merge(dtype="bf16", head_dim=96), SM_90A)
    assert [(r.code, r.field, r.got, r.allowed) for r in reasons] == [
        ("OPF-S002", "dtype", "bf16", "f16"),
        ("OPF-S003", "head_dim", "96", "64, 128"),
    ]
    assert [r.code for r in candidate.declines(merge(), SM_75)] == ["OPF-S001"]


def test_constants_are_fields_and_a_later_one_at_its_default_is_none():
    candidate = KERNEL.candidate
    spec = candidate.jit_spec(merge(), SM_90A)
    assert (spec.template, dict(spec.params)) == ("cascade/merge_states", {"dtype": "f16", "head_dim": 64})
    listed = candidate.jit_spec(merge(states="list", in_place=True), SM_90A)
    assert dict(listed.params) == {"dtype": "f16", "head_dim": 64, "in_place": True, "states": "list"}
    sku = candidate.sku(merge(in_place=True), SM_90A)
    assert (sku.impl, sku.dtypes, dict(sku.spec)) == ("rows", (("o", "f16"),), {"head_dim": 64, "in_place": True})
    assert sku.precision_guarantee == PROMISE


def test_nothing_is_launched_where_nothing_is_written():
    candidate, empty = KERNEL.candidate, merge(total_num_rows=0)
    assert writes_nothing(empty)
    assert not writes_nothing(merge())
    assert not writes_nothing(merge(in_place=True))
    assert candidate.launcher(empty, SM_90A, candidate.sku(empty, SM_90A), False) is support.nothing_to_do


def test_a_kernel_that_repeats_its_bits_promises_it():
    told = repeatable("f32", "none", "exact", REPEATS, batch_invariant="composition")
    assert (told.deterministic, told.bit_stable_on_same_hardware, told.batch_invariant) == (True, True, "composition")
    assert (told.math_precision, told.accumulator, told.error_model.id, told.evidence) == ("f32", "none", "exact", REPEATS)
    for name in REPEATS:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (Path(__file__).parents[2] / path).read_text()


def test_what_depends_on_the_descriptor_is_a_function_of_it():
    kernel = CudaKernel(
        descriptor=MergeStatesDescriptor,
        template=lambda d: f"cascade/merge_{d.states}",
        impl=lambda d: f"rows_{d.states}",
        name="rows",
        accepts=lambda d, target: support.limit_reason("OPF-S005", "num_heads", d.num_heads, 2),
        constants=lambda d: {"dtype": d.dtype, "width": d.head_dim},
        dtypes=lambda d: (("all", d.dtype),),
        in_dtypes=("dtype",),
        guarantee=lambda d, target: PROMISE.model_copy(update={"math_precision": d.dtype}),
    )
    sku = kernel.candidate.sku(merge(states="list"), SM_90A)
    assert (kernel.candidate.name, sku.impl, sku.dtypes, dict(sku.spec)) == (
        "cuda/rows",
        "rows_list",
        (("all", "f16"),),
        {"width": 64},
    )
    assert sku.precision_guarantee.math_precision == "f16"
    assert kernel.candidate.jit_spec(merge(), SM_90A).template == "cascade/merge_stacked"
    assert [r.field for r in kernel.candidate.declines(merge(), SM_90A)] == ["num_heads"]


def test_a_reference_is_its_error_model_and_a_function():
    def run(descriptor, args):
        assert torch.is_inference_mode_enabled()
        args.o.fill_(descriptor.num_heads)

    candidate = reference(MergeStatesDescriptor, "merge-f32", lambda d: (("o", d.dtype),), run)
    sku = candidate.sku(merge(), CPU)
    assert (sku.dtypes, sku.spec, sku.impl) == ((("o", "f16"),), (), "torch")
    promise = sku.precision_guarantee
    assert (promise.math_precision, promise.accumulator, promise.error_model.id) == ("f64", "f64", "merge-f32")
    assert (candidate.workspace(merge(), CPU), candidate.jit_spec, candidate.declines(merge(), CPU)) == (0, None, ())
    args = MergeStatesArgs(o=torch.zeros(2))
    candidate.launcher(merge(), CPU, sku, True)(args, None)
    assert args.o.tolist() == [3, 3]
    other = reference(MergeStatesDescriptor, lambda d: PROMISE, (), run, (("a", 1),)).sku(merge(), CPU)
    assert (other.precision_guarantee, other.spec) == (PROMISE, (("a", 1),))


@pytest.mark.parametrize("field", ["in_place", "states"])
def test_a_fact_that_is_said_changes_the_sku(field):
    value = {"in_place": True, "states": "list"}[field]
    assert KERNEL.candidate.sku(merge(), SM_90A).id != KERNEL.candidate.sku(merge(**{field: value}), SM_90A).id
