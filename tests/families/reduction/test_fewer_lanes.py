"""Folds of rows with weights use fewer lanes per row if there are many rows; the bits of a row do not depend on this choice."""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.folds.strategies import rows as numbers
from opfacade.core.descriptor import operands_of
from opfacade.plans.reduction import FoldOutput, Stage
from opfacade.programs.expression import apply, stage
from opfacade.programs.fields import Input
from opfacade.programs.stages import REDUCERS
from opfacade.testing import inputs, numerics
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.norm.test_reference import made
from tests.families.reduction.forms import W, X, rows, softmax

LAYER = {"kind": "layer", "bias": True, "weight_dtype": "f32"}
SM_90A = Target.parse("sm_90a")


def weighted(reducer, shape):
    """An element minus a result of its row, multiplied by a weight of its column."""
    kept = Stage(reducer=reducer, value=X)
    part = "mean" if reducer == "welford" else list(REDUCERS[reducer].parts)[-1]
    result = stage(0, kept.part(part), part)
    result = result if result.type == "f32" else apply("f32", result)
    given = (Input(name="x", dtype="f16"), Input(name="w", dtype="f16", over=(1,)))
    return rows(shape, (1,), (kept,), (FoldOutput(name="y", dtype="f32", value=(X - result) * W),), given)


NORMS = {
    "rms": made(hidden=1024, rows=6),
    "rms, 64 lanes": made(hidden=2048, rows=3),
    "rms, a rest": made(hidden=1000, rows=5),
    "layer": made(hidden=1024, rows=6, **LAYER),
    "layer, a rest": made(hidden=800, rows=5, **LAYER),
    "layer, 64 lanes": made(hidden=1800, rows=3, **LAYER),
    "valid rows": made(hidden=1024, rows=6, num_valid=True),
}
REDUCED = {name: weighted(name, (5, 1000)) for name in ("sum", "max", "argmax", "welford", "expsum")}
PROBLEMS = NORMS | REDUCED | {f"{name}, 64 lanes": weighted(name, (3, 2040)) for name in ("sum", "welford")}


def launched(problem, many, monkeypatch):
    """(SKU, results), with `many` as the number of rows above which a problem has many rows."""
    monkeypatch.setattr(numbers, "MANY_ROWS", many)
    subject, args = emulator.subject(problem), inputs.make_args(problem, 3, lengths=inputs.DrawnLengths(valid=4))
    params = dict(subject.plan.jit_spec.params)
    assert params["fewer"] > 1
    before = numerics.snapshot(problem, args)
    subject.run(args)
    assert numerics.check(problem, args, subject.plan.sku, before=before).worst <= 1
    return subject.plan.sku.id, [getattr(args, name) for name, spec in operands_of(problem).items() if spec.written]


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_fewer_lanes_per_row_give_the_same_bits(name, monkeypatch):
    problem = PROBLEMS[name]
    sku, few = launched(problem, 1000, monkeypatch)
    other, many = launched(problem, 2, monkeypatch)
    assert sku == other
    for one, same in zip(few, many, strict=True):
        assert not bool(differs(one, same).any())


def test_rows_without_weights_have_the_same_lanes_for_any_number_of_rows():
    for problem in (softmax((5, 1024), "bf16"), weighted("sum", (5, 4096))):
        assert dict(Plan.select(problem, Preference(backend="cuda"), SM_90A).jit_spec.params)["fewer"] == 1
    shape = dict(Plan.select(softmax((5, 1024), "bf16"), Preference(backend="cuda"), SM_90A).jit_spec.params)
    assert (shape["threads"], shape["pieces"]) == (32, 4)


def test_rows_of_two_inputs_have_the_same_lanes_for_any_number_of_rows():
    shape = dict(Plan.select(made(hidden=1024, residual=True), Preference(backend="cuda"), SM_90A).jit_spec.params)
    assert (shape["threads"], shape["fewer"]) == (128, 1)


@pytest.mark.parametrize("hidden", [640, 1024, 1536, 2048, 2880, 3072])
@pytest.mark.parametrize("fields", [{}, {"residual": True}, LAYER], ids=["rms", "residual", "layer"])
def test_fewer_lanes_are_still_whole_warps(hidden, fields):
    shape = dict(Plan.select(made(hidden=hidden, **fields), Preference(backend="cuda"), SM_90A).jit_spec.params)
    assert shape["threads"] % (32 * shape["fewer"]) == 0
    assert shape["pieces"] * shape["fewer"] <= 8


@pytest.mark.gpu
@pytest.mark.parametrize("fields", [{}, {"residual": True}, LAYER], ids=["rms", "residual", "layer"])
@pytest.mark.parametrize("hidden", [640, 1000, 1024, 1536, 2048])
def test_many_rows_have_the_bits_of_few_rows_on_a_gpu(hidden, fields):
    many = numbers.MANY_ROWS + 5
    args = inputs.make_args(made(hidden=hidden, rows=many, **fields), 3, "cuda")
    x = args.x.clone()
    residual = args.residual.clone() if args.residual is not None else None
    Plan.select(made(hidden=hidden, rows=many, **fields), Preference(backend="cuda")).run(args)
    for first in (0, many - 64):
        part = inputs.make_args(made(hidden=hidden, rows=64, **fields), 3, "cuda")
        part.x.copy_(x[first : first + 64]), part.weight.copy_(args.weight)
        if residual is not None:
            part.residual.copy_(residual[first : first + 64])
        if part.bias is not None:
            part.bias.copy_(args.bias)
        Plan.select(made(hidden=hidden, rows=64, **fields), Preference(backend="cuda")).run(part)
        assert torch.equal(part.out, args.out[first : first + 64])
