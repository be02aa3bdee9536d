"""Products by cuBLASLt: selection, calls of the library, and refusals, with a fake of its interface."""

import gc
import os
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target, explain
from opfacade.errors import DescriptorError, GuaranteeUnavailable, LayoutError, UnsupportedError
from opfacade.plans.matmul import MatmulDescriptor, Scaling, Weight
from opfacade.select.registry import candidates_for
from opfacade.testing import inputs, numerics
from tests.families.matmul import cublaslt_here

GPUS = {name: Target.parse(name) for name in ("sm_80", "sm_89", "sm_90a", "sm_100a")}
LIBRARY = Preference(backend="library")


def made(rows=7, n=24, k=40, dtype="bf16", **more):
    return MatmulDescriptor(total_num_rows=rows, n=n, k=k, dtype=dtype, **more)


FORMS = {
    "bf16": made(),
    "f16-odd": made(5, 33, 41, "f16"),
    "f16-to-f32": made(dtype="f16", out_dtype="f32", bias=True),
    "f32": made(dtype="f32", alpha=-0.5),
    "f64": made(dtype="f64", bias=True),
    "kn": made(dtype="f32", weight_layout="kn"),
    "km": made(x_layout="km"),
    "km-kn": made(dtype="f64", x_layout="km", weight_layout="kn"),
    "bias": made(bias=True, out_dtype="f32"),
    "add": made(dtype="f32", add=True, beta=0.25),
    "accumulate": made(out_dtype="f32", accumulate=True, beta=2.0, x_layout="km", weight_layout="kn"),
    "batched": made(dtype="f32", batch=3),
    "batched-added": made(batch=2, add=True, weight_layout="kn"),
    "one-row": made(rows=1),
    "one-column": made(n=1, dtype="f32"),
    "one-term": made(k=1),
    "relu": made(activation="relu"),
    "relu-bias": made(dtype="f32", activation="relu", bias=True),
}


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


@pytest.fixture
def library():
    with cublaslt_here.here():
        yield


def candidate_of(name="cublaslt_matmul"):
    return next(one for one in candidates_for(MatmulDescriptor) if one.name == f"library/{name}")


def launched(problem, target=GPUS["sm_80"]):
    """The launcher alone, without the check that tensors are on a GPU."""
    candidate = candidate_of()
    sku = candidate.sku(problem, target)
    return sku, candidate.launcher(problem, target, sku, True)


def scratch(problem):
    return torch.empty(candidate_of().workspace(problem, GPUS["sm_80"]), dtype=torch.uint8)


def formula(problem, args, before):
    """By the definition, in f64."""
    x = args.x.double() if problem.x_layout == "mk" else args.x.double().mT
    w = args.weight.double() if problem.weight_layout == "kn" else args.weight.double().mT
    found = problem.alpha * torch.einsum("...mk,...kn->...mn", x, w)
    found = found if args.bias is None else found + args.bias.double()
    found = found.clamp(min=0) if problem.activation == "relu" else found
    found = found if args.add is None else found + problem.beta * args.add.double()
    return found + problem.beta * before.double() if problem.accumulate else found


@pytest.mark.parametrize("name", FORMS)
def test_a_product_is_that_of_its_formula_and_within_its_bound(name, library):
    problem = FORMS[name]
    args, old = inputs.make_args(problem, 3), None
    if not problem.accumulate:
        args.out.fill_(float("nan"))
    old, before = args.out.clone(), numerics.snapshot(problem, args)
    sku, launch = launched(problem)
    launch(args, scratch(problem))
    want = formula(problem, args, old)
    step = {"f64": 2.0**-40, "f32": 2.0**-18, "f16": 2.0**-10, "bf16": 2.0**-7}[problem.result]
    assert (args.out.double() - want).abs().max() <= step * want.abs().max()
    assert numerics.check(problem, args, sku, before=before).worst <= 1


@pytest.mark.parametrize("axis", ["x", "weight", "out", "all"])
def test_rows_that_lie_apart_are_taken_as_they_are(axis, library):
    problem = made(dtype="f32")
    args = inputs.make_args(problem, 4)
    _, launch = launched(problem)
    launch(args, scratch(problem))
    apart = {}
    for name in ("x", "weight", "out") if axis == "all" else (axis,):
        tensor = getattr(args, name)
        wide = torch.full((tensor.shape[0], tensor.shape[1] + 3), float("nan"))
        apart[name] = wide[:, 1:-2].copy_(tensor)
    other = replace(args, **{"out": torch.zeros_like(args.out), **apart})
    launch(other, scratch(problem))
    assert torch.equal(other.out, args.out)
    if "out" in apart:
        assert apart["out"]._base[:, 0].isnan().all()
        assert apart["out"]._base[:, -2:].isnan().all()


def test_matrices_of_a_batch_may_be_one(library):
    problem = made(dtype="f32", batch=3)
    args = inputs.make_args(problem, 4)
    shared = replace(args, weight=args.weight[:1].expand(3, -1, -1))
    _, launch = launched(problem)
    launch(shared, scratch(problem))
    want = args.x.double() @ args.weight[0].double().mT
    assert (args.out.double() - want).abs().max() < 1e-4


def test_it_takes_no_algorithm_that_rounds_parts_or_inputs(library):
    """The fake offers four algorithms that break the bound before the one in f32; the preference forbids them."""
    problem = made()
    _, launch = launched(problem)
    launch(inputs.make_args(problem, 1), scratch(problem))
    assert cublaslt_here.log() == [
        "create",
        "heuristic 2 schemes 2",
        f"matmul algo 5 workspace {1 << 20} stream {cublaslt_here.STREAM}",
    ]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_it_takes_none_either_where_the_library_ignores_the_preference(dtype):
    problem = made(dtype=dtype)
    with cublaslt_here.here(respects=False):
        _, launch = launched(problem)
        launch(inputs.make_args(problem, 1), scratch(problem))
        assert cublaslt_here.log()[1:] == [
            "heuristic 6 schemes 2",
            f"matmul algo 5 workspace {1 << 20} stream {cublaslt_here.STREAM}",
        ]


def test_strides_and_addresses_choose_again_and_equal_ones_do_not(library):
    problem = made(dtype="f32")
    args = inputs.make_args(problem, 1)
    _, launch = launched(problem)
    for _ in range(3):
        launch(args, scratch(problem))
    odd = torch.empty(args.x.numel() + 1)[1:].view_as(args.x).copy_(args.x)
    launch(replace(args, x=odd), scratch(problem))
    names = [line.split()[0] for line in cublaslt_here.log()]
    assert names == ["create", "heuristic", "matmul", "matmul", "matmul", "heuristic", "matmul"]
    assert "algo 6 workspace 0" in cublaslt_here.log()[-1]  # the only algorithm for an address that is not aligned to 16 bytes


def test_it_destroys_all_that_it_creates(library):
    problem = made()
    gc.collect()
    before = cublaslt_here.opened().fake_live()
    _, launch = launched(problem)
    launch(inputs.make_args(problem, 1), scratch(problem))
    assert cublaslt_here.opened().fake_live() > before
    del launch
    gc.collect()
    assert cublaslt_here.opened().fake_live() == before


def test_a_child_of_a_fork_calls_nothing_of_the_library(library):
    problem = made()
    _, launch = launched(problem)
    launch(inputs.make_args(problem, 1), scratch(problem))
    child = os.fork()
    if not child:
        before = cublaslt_here.opened().fake_live()
        del launch
        gc.collect()
        os._exit(before - cublaslt_here.opened().fake_live())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_without_a_workspace_it_takes_an_algorithm_that_needs_none(library):
    problem = made()
    plan = Plan.select(problem, Preference(backend="library", max_workspace_bytes=1000), GPUS["sm_80"])
    assert plan.sku.impl == "cublaslt_matmul_lean"
    assert plan.workspace_size == 0
    launch = candidate_of("cublaslt_matmul_lean").launcher(problem, plan.target, plan.sku, True)
    args = inputs.make_args(problem, 1)
    launch(args, None)
    assert cublaslt_here.log()[-1].startswith("matmul algo 6 workspace 0 ")
    assert (args.out.double() - formula(problem, args, args.out)).abs().max() <= 2.0**-7 * args.out.double().abs().max()


def test_nothing_to_write_calls_nothing(library):
    problem = made(rows=0)
    _, launch = launched(problem)
    launch(inputs.make_args(problem, 1), scratch(problem))
    assert cublaslt_here.log() == []


@pytest.mark.parametrize("name", ["x", "weight", "add"])
def test_overlapping_rows_are_refused_before_anything_is_written(name, library):
    problem = made(dtype="f32", add=True, rows=6)
    args = inputs.make_args(problem, 1)
    tensor = getattr(args, name)
    windows = tensor.flatten().as_strided(tensor.shape, (tensor.shape[1] - 1, 1))
    args.out.fill_(5)
    _, launch = launched(problem)
    with pytest.raises(LayoutError, match=rf"{name} expected rows that are {tensor.shape[1]} or more elements apart.*OPF-A029"):
        launch(replace(args, **{name: windows}), scratch(problem))
    assert (args.out == 5).all()


def test_expanded_rows_are_refused(library):
    """From the plan, since cuBLASLt has an argument for each row."""
    problem = made(dtype="f32", batch=2, add=True)
    operands = candidate_of().operands(problem)
    assert {name: operands[name].strides.expandable for name in ("x", "weight", "add")} == {
        "x": (0,),
        "weight": (0,),
        "add": (),
    }


# --- selection


WITHOUT_OURS = [(arch, dtype) for arch in ("sm_80", "sm_86", "sm_89", "sm_100a") for dtype in ("f16", "bf16", "f32", "f64")]
WITHOUT_OURS += [("sm_90a", "f32"), ("sm_90a", "f64")]


@pytest.mark.parametrize(("arch", "dtype"), WITHOUT_OURS)
def test_it_is_chosen_where_we_have_no_kernel(arch, dtype, library):
    plan = Plan.select(made(dtype=dtype), target=Target.parse(arch))
    assert (plan.sku.backend, plan.sku.impl, plan.workspace_size) == ("library", "cublaslt_matmul", 32 << 20)


def test_it_stands_behind_ours_and_can_be_asked_for(library):
    found = explain(made(), target=GPUS["sm_90a"])
    assert [o.name for o in found.options if not o.reasons] == [
        "cuda/wgmma_tile",
        "library/cublaslt_matmul",
        "library/cublaslt_matmul_lean",
        "reference/torch",
    ]
    assert found.chosen.name == "cuda/wgmma_tile"
    plan = Plan.select(made(), LIBRARY, GPUS["sm_90a"])
    assert plan.sku.backend == "library"


def test_the_sku_names_the_library_and_the_choice_of_algorithm(library):
    plan = Plan.select(made(dtype="f32", bias=True), LIBRARY, GPUS["sm_90a"])
    assert dict(plan.sku.spec) == {"algo": "heuristic", "bias": True, "cublaslt": "v13.1.0.3", "workspace": 32 << 20}
    with cublaslt_here.installed("13.2.0.9"):
        assert "cublaslt=v13.2.0.9" in explain(made(), LIBRARY, GPUS["sm_90a"]).chosen.sku.id


@pytest.mark.parametrize("flag", ["deterministic", "batch_invariant"])
def test_heuristics_promise_no_flag(flag, library):
    with pytest.raises(GuaranteeUnavailable):
        Plan.select(made(dtype="f32"), Preference(backend="library", require=flag), GPUS["sm_90a"])


MODELS = {"bf16": "matmul-mma16", "f16": "matmul-mma16", "f32": "matmul-f32", "f64": "matmul-f64"}


@pytest.mark.parametrize("dtype", MODELS)
def test_the_bound_is_that_of_the_type_in_any_order(dtype, library):
    model = Plan.select(made(dtype=dtype), LIBRARY, GPUS["sm_90a"]).precision_guarantee.error_model
    assert model.id == MODELS[dtype]
    roundoff = {"matmul-mma16": 2.0**-23, "matmul-f32": 2.0**-24, "matmul-f64": 2.0**-53}[model.id]
    assert dict(model.constants)["u_acc"] == roundoff


TF32 = {"plain": {}, "across": {"weight_layout": "kn", "bias": True}, "added": {"batch": 2, "add": True, "beta": 0.5}}


@pytest.mark.parametrize("name", TF32)
def test_products_in_tf32_keep_a_bound_of_their_own(name, library):
    """The fake cuts 13 bits of the mantissa off. So the bound of f32 breaks, and half of that of TF32 is not enough."""
    problem = made(64, 48, 96, "f32", fp32_precision="tf32", **TF32[name])
    args = inputs.make_args(problem, 3)
    args.x.abs_(), args.weight.abs_()  # errors of cut numbers of one sign add up
    sku, launch = launched(problem)
    launch(args, scratch(problem))
    assert cublaslt_here.log()[-1].startswith("matmul algo 3 ")
    promise = sku.precision_guarantee
    assert (promise.math_precision, promise.error_model.id, promise.deterministic) == ("tf32", "matmul-tf32", False)
    assert 0.25 < numerics.check(problem, args, sku).worst <= 1
    exact = made(64, 48, 96, "f32", **TF32[name])
    assert numerics.check(exact, args, launched(exact)[0]).worst > 1


def test_tf32_is_for_f32_alone_and_an_exact_product_serves_it(library):
    problem = made(dtype="f32", fp32_precision="tf32")
    assert Plan.select(problem, LIBRARY, GPUS["sm_80"]).sku.id != Plan.select(made(dtype="f32"), LIBRARY, GPUS["sm_80"]).sku.id
    args = inputs.make_args(problem, 3)
    Plan.select(problem, Preference(backend="reference"), Target.cpu()).run(args)
    assert torch.allclose(args.out.double(), args.x.double() @ args.weight.double().mT, rtol=1e-6, atol=1e-6)
    for fields in ({"dtype": "bf16"}, {"dtype": "f64"}, {"dtype": "f32", "weight_format": Weight(dtype="int4", group=16)}):
        with pytest.raises(DescriptorError, match="fp32_precision"):
            made(**fields, fp32_precision="tf32")


@pytest.mark.parametrize("alpha", [1.0, 2.0**-12])
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_sum_may_be_stored_in_16_bits_before_its_bias(dtype, alpha, library):
    """cuBLASLt has such algorithms and does not say which they are. Our own kernels add to the sum in f32."""
    problem = made(rows=64, n=128, k=64, dtype=dtype, bias=True, alpha=alpha)
    args = inputs.make_args(problem, 2)
    kind = args.out.dtype
    args.bias.copy_(-(alpha * (args.x[0].double() @ args.weight.double().mT)).to(kind) * 0.75)  # so that sums cancel
    stored = (alpha * (args.x.double() @ args.weight.double().mT)).to(kind).double()
    twice = (stored + args.bias.double()).to(kind)
    sku, _ = launched(problem)
    ours = Plan.select(problem, Preference(backend="cuda"), GPUS["sm_90a"]).sku
    assert numerics.check(problem, replace(args, out=twice), sku).worst <= 1
    assert numerics.check(problem, replace(args, out=twice), ours).worst > 1
    exact = alpha * (args.x.double() @ args.weight.double().mT)
    coarse = exact.frexp()[1] - {"f16": 10, "bf16": 7}[dtype]  # a unit of a sum with one bit less
    rounded = (exact / 2.0**coarse).round() * 2.0**coarse
    assert numerics.check(problem, replace(args, out=(rounded + args.bias.double()).to(kind)), sku).worst > 1


def test_a_stored_sum_of_f16_may_become_infinite_before_its_bias(library):
    problem = made(rows=1, n=2, k=16, dtype="f16", bias=True)
    args = inputs.make_args(problem, 2)
    args.x.fill_(64.0), args.weight[0].fill_(70.0), args.weight[1].fill_(50.0)  # sums of 71680 and 51200
    args.bias.fill_(-20000.0)
    sku, _ = launched(problem)
    for out, fits in (([51680.0, 31200.0], True), ([float("inf"), 31200.0], True), ([51680.0, float("inf")], False)):
        got = replace(args, out=torch.tensor([out]).half())
        assert (numerics.check(problem, got, sku).worst <= 1) == fits


def test_a_missing_step_of_16_products_breaks_the_bound_at_large_k(library):
    problem = made(rows=4, n=6, k=16384, out_dtype="f32")
    args = inputs.make_args(problem, 1)
    sku, _ = launched(problem)
    args.out.copy_(formula(problem, args, args.out))
    assert numerics.check(problem, args, sku).worst <= 1
    step = args.x[:, 5008:5024].double() @ args.weight[:, 5008:5024].double().mT
    args.out.sub_(step.float())
    assert numerics.check(problem, args, sku).worst > 1


REFUSED = {
    "activation": (made(dtype="f32", activation="gelu_tanh"), "activation", "none, relu"),
    "relu-then-add": (made(activation="relu", add=True), "activation", "none"),
    "relu-then-old": (made(activation="relu", accumulate=True), "activation", "none"),
    "relu-f64": (made(dtype="f64", activation="relu"), "activation", "none"),
    "gated": (made(gated=True), "gated", "False"),
    "num_valid": (made(num_valid=True), "num_valid", "False"),
    "order": (made(order="k"), "order", "free"),
    "sm_limit": (made(sm_limit=4), "sm_limit", "null"),
    "fp8": (made(dtype="f8_e4m3", scaling=Scaling(kind="token")), "dtype", "f16, bf16, f32, f64"),
    "i8": (made(dtype="i8"), "dtype", "f16, bf16, f32, f64"),
    "codes": (made(k=64, weight_format=Weight(dtype="int4", group=32)), "weight_format", "null"),
    "out": (made(dtype="f16", out_dtype="bf16"), "out_dtype", "f16, f32"),
    "f32-out": (made(dtype="f32", out_dtype="bf16"), "out_dtype", "f32"),
    "bias-type": (made(bias=True, bias_dtype="f32"), "bias_dtype", "bf16"),
    "two": (made(bias=True, add=True), "bias, add, accumulate", "one of them"),
    "no-terms": (made(k=0), "k", "1 or more"),
    "alpha": (made(alpha=0.0), "alpha", "other numbers"),
    "beta": (made(add=True, beta=0.0), "beta", "other numbers"),
    "batch": (made(batch=65536), "batch", "at most 65535"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_compute_is_refused_by_name(name, library):
    problem, field, allowed = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        Plan.select(problem, LIBRARY, GPUS["sm_90a"])
    issues = {(i.argument, i.expected) for i in caught.value.issues if i.argument.startswith("library/cublaslt_matmul: ")}
    assert issues == {(f"library/cublaslt_matmul: {field}", allowed)}


def test_a_size_that_is_refused_changes_no_answer_of_another(library):
    """Refusals are cached by the fields that are not sizes."""
    for k, fits in ((8, True), (0, False), (8, True)):
        assert (explain(made(k=k), LIBRARY, GPUS["sm_80"]).chosen is not None) == fits


@pytest.mark.parametrize("target", [Target.cpu(), Target.parse("sm_75")], ids=["cpu", "sm_75"])
def test_it_needs_a_gpu_from_sm_80_on(target, library):
    with pytest.raises(UnsupportedError, match="sm_80 and later"):
        Plan.select(made(), LIBRARY, target)
