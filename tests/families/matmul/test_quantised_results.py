"""Results of 8 bits: divided by one scale, rounded once, saturating. Sums of small integers are exact."""

from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import ArgumentError, DescriptorError
from opfacade.plans.matmul import GroupedMatmulDescriptor, MatmulArgs, MatmulDescriptor, Scaling, Weight
from opfacade.testing import inputs, numerics
from tests import emulator

LARGEST = {"f8_e4m3": 448.0, "f8_e5m2": 57344.0, "i8": 127.0}
TORCH = {"f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2, "i8": torch.int8, "bf16": torch.bfloat16}
TYPES = [
    ("bf16", "f8_e4m3"),
    ("bf16", "f8_e5m2"),
    ("f8_e4m3", "f8_e4m3"),
    ("bf16", "i8"),
    ("f8_e4m3", "i8"),
    ("i8", "i8"),
    ("i8", "f8_e4m3"),
]


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def made(dtype, out_dtype, **more):
    """i8 rows have one scale, of 1."""
    more |= {"scaling": Scaling(kind="tensor")} if dtype == "i8" else {}
    return MatmulDescriptor(**{"total_num_rows": 9, "n": 37, "k": 48, "dtype": dtype, "out_dtype": out_dtype} | more)


def call_of(problem, scale):
    """Operands from -3 to 3, and the quotients of their products."""
    g = torch.Generator().manual_seed(3)
    x, w = (
        torch.randint(-3, 4, shape, generator=g).double()
        for shape in ((problem.total_num_rows, problem.k), (problem.n, problem.k))
    )
    bias = torch.randint(-40, 41, (problem.n,), generator=g).double() if problem.bias else None
    want = x @ w.T + (0 if bias is None else bias)
    want = want.relu() if problem.activation == "relu" else want
    want = want / scale
    args = MatmulArgs(
        x=x.to(TORCH[problem.dtype]),
        weight=w.to(TORCH[problem.dtype]),
        bias=None if bias is None else bias.bfloat16(),
        out=torch.ones(want.shape).to(TORCH[problem.result]),
        out_scale=torch.tensor([scale]),
        **({name: torch.ones(1) for name in ("x_scale", "weight_scale")} if problem.scaling else {}),
    )
    return args, want


def stored(value, dtype):
    if dtype == "i8":
        return value.round().clamp(-128, 127)
    return value.clamp(-LARGEST[dtype], LARGEST[dtype]).float().to(TORCH[dtype]).double()


def agrees(out, want, dtype):
    """Kernels divide with an error of 2^-21 at most, so that a tie may be rounded either way."""
    near = [stored(want * (1 + off), dtype) for off in (-(2.0**-21), 2.0**-21)]
    return bool(((out.double() == near[0]) | (out.double() == near[1])).all())


def ran_by_reference(problem, args):
    Plan.select(problem, Preference(backend="reference")).run(args)


def ran_by_kernel(problem, args):
    emulator.subject(problem).run(args)


RUNS = [ran_by_reference, pytest.param(ran_by_kernel, marks=emulator.needed)]


@pytest.mark.parametrize("scale", [0.125, 3.0, 64.0])
@pytest.mark.parametrize(("dtype", "out_dtype"), TYPES)
@pytest.mark.parametrize("run", RUNS)
def test_results_are_divided_and_rounded_once(run, dtype, out_dtype, scale):
    """0.125: many saturate."""
    problem = made(dtype, out_dtype)
    args, want = call_of(problem, scale)
    run(problem, args)
    assert agrees(args.out, want, out_dtype)
    assert run is ran_by_kernel or torch.equal(args.out.double(), stored(want, out_dtype))
    assert scale > 1 or out_dtype != "f8_e4m3" or bool((args.out.double().abs() == LARGEST[out_dtype]).any())


@pytest.mark.parametrize("out_dtype", ["f8_e4m3", "i8"])
@pytest.mark.parametrize("run", RUNS)
def test_the_epilogue_comes_first(run, out_dtype):
    problem = made("bf16", out_dtype, bias=True, bias_dtype="bf16", activation="relu")
    args, want = call_of(problem, 2.0)
    run(problem, args)
    assert agrees(args.out, want, out_dtype)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("scale", [0.0, float("nan"), float("inf")])
def test_any_scale_acts_as_arithmetic_says(run, scale):
    problem = made("bf16", "f8_e4m3")
    args, _ = call_of(problem, 1.0)
    args.x[2, 5] = float("nan")
    sums = args.x.double() @ args.weight.double().T
    args.out_scale.fill_(scale)
    run(problem, args)
    want, got = sums / scale, args.out.double()
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.nan_to_num(), want.clamp(-448, 448).nan_to_num())


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize(("scale", "results"), [(0.0, (127, -128, 0)), (float("nan"), (0, 0, 0)), (float("inf"), (0, 0, 0))])
def test_results_of_i8_saturate_and_nan_becomes_0(run, scale, results):
    """Sums of 48, -48 and 0."""
    problem = made("bf16", "i8")
    args, _ = call_of(problem, 1.0)
    args.x.fill_(1.0), args.weight.zero_()
    args.weight[0], args.weight[1] = 1.0, -1.0
    args.out_scale.fill_(scale)
    run(problem, args)
    assert args.out[4, :3].tolist() == list(results)


@emulator.needed
@pytest.mark.parametrize("out_dtype", ["f8_e4m3", "i8"])
def test_gated_results_of_blocks_keep_their_bound(out_dtype):
    problem = made("f8_e4m3", out_dtype, scaling=Scaling(kind="block"), gated=True, activation="silu", k=300)
    args = inputs.make_args(problem, 4)
    subject = emulator.subject(problem)
    subject.run(args)
    assert numerics.check(problem, args, subject.plan.sku).worst <= 1


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"add": True}, "add"),
        ({"accumulate": True}, "accumulate"),
        ({"bias": True}, "bias_dtype"),
        ({"weight_format": Weight(dtype="int4", group=16)}, "out_dtype"),
    ],
)
def test_what_no_scale_describes_is_refused(fields, named):
    with pytest.raises(DescriptorError, match=named):
        made("bf16", "f8_e4m3", **fields)


def test_a_call_without_the_scale_is_refused():
    problem = made("bf16", "f8_e4m3")
    args, _ = call_of(problem, 1.0)
    with pytest.raises(ArgumentError, match="out_scale"):
        Plan.select(problem, Preference(backend="reference")).run(MatmulArgs(x=args.x, weight=args.weight, out=args.out))


GROUPS = {
    "ragged": {"layout": "ragged", "gather": True, "num_x_rows": 9},
    "masked": {"layout": "masked"},
}


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3", "i8"])
@pytest.mark.parametrize("out_dtype", ["f8_e4m3", "i8"])
@pytest.mark.parametrize("layout", GROUPS)
@pytest.mark.parametrize("run", RUNS)
def test_results_of_groups_have_one_scale(run, layout, out_dtype, dtype):
    """Rows 0 to 3 are those of the first group, the fifth is the third's, and others have no group."""
    scaling = {"scaling": Scaling(kind="token")} if dtype == "i8" else {}
    problem = GroupedMatmulDescriptor(
        groups=3, total_num_rows=6, n=24, k=32, dtype=dtype, out_dtype=out_dtype, **GROUPS[layout], **scaling
    )
    args = inputs.make_args(problem, 5)
    for name in ("x", "weight"):
        tensor = getattr(args, name)
        tensor.copy_(torch.randint(-3, 4, tensor.shape, generator=torch.Generator().manual_seed(2)).to(tensor.dtype))
    for name in ("x_scale", "weight_scale") if scaling else ():
        getattr(args, name).fill_(1.0)
    args.out_scale.fill_(0.5)
    old = args.out.clone().fill_(1)
    args.out.copy_(old)
    if layout == "ragged":
        args.indptr.copy_(torch.tensor([0, 4, 4, 5]))
        args.x_rows.copy_(torch.tensor([8, 0, 3, 3, 1, 2]))
        rows = {row: (args.x[args.x_rows[row]], 0 if row < 4 else 2) for row in range(5)}
        out, kept = args.out, old[5:]
    else:
        args.counts.copy_(torch.tensor([4, 0, 1]))
        rows = {6 * g + r: (args.x[g, r], g) for g, count in ((0, 4), (2, 1)) for r in range(count)}
        out, kept = args.out.view(18, 24), old.view(18, 24)[4:12]
    run(problem, args)
    for row, (x, group) in rows.items():
        want = x.double() @ args.weight[group].double().T / 0.5
        assert agrees(out[row], want, out_dtype), row
    rest = out[5:] if layout == "ragged" else out[4:12]
    assert torch.equal(rest.double(), kept.double())


def test_sums_of_gradients_are_not_quantised():
    with pytest.raises(DescriptorError, match="layout k"):
        GroupedMatmulDescriptor(groups=2, total_num_rows=4, n=8, k=16, dtype="bf16", layout="k", out_dtype="i8")
