"""Every op has a harness, whose random problems and cases are of that op."""

import random
from importlib import import_module

import pytest

from opfacade import Plan, Target
from opfacade.core.descriptor import inout, operands_of
from opfacade.select.registry import descriptor_types, examples, families
from opfacade.testing import numerics
from opfacade.testing.bits import same_bits
from opfacade.testing.harness import harness_for, harness_of
from opfacade.testing.inputs import make_args
from opfacade.testing.problems import OPS


@pytest.mark.parametrize("family", families())
def test_a_family_has_a_harness_for_each_of_its_ops(family):
    found = import_module(f"opfacade.testing.families.{family}").HARNESSES
    assert set(found) == {op for op, kind in descriptor_types().items() if kind.family() == family}


@pytest.mark.parametrize("op", OPS)
def test_random_problems_and_cases_are_of_the_op(op):
    harness = harness_for(op)
    drawn = [harness.problem(op, 1, 600), harness.special_problem(op, 1, 600), harness.small(op, random.Random(1))]
    assert {d.op for d in (*drawn, *harness.cases(op).values())} == {op}
    assert harness.problem(op, 1, 600) == drawn[0] != harness.problem(op, 2, 600)
    assert harness.has_special == (type(harness).special is not type(harness).__mro__[-2].special)


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.op)
def test_drawn_lengths_add_up_to_the_bounds(example):
    found = harness_of(example).lengths(example)
    for lengths, total in ((found.q, "total_num_rows"), (found.kv, "total_kv_rows")):
        assert lengths is None or total not in dict(example) or sum(lengths) == dict(example)[total]


def test_overwritten_operands_are_derived_from_their_role():
    found = {(e.op, inout(e)) for e in examples() if inout(e)}
    assert found == {
        ("paged_kv_append", ("k_data", "v_data")),
        ("merge_states", ("states_o", "states_lse")),
        ("map", ("in_0",)),
        ("matmul", ("out",)),
        ("grouped_matmul", ("out",)),
        ("adjust_logits", ("logits",)),
        ("all_reduce_norm", ("residual",)),
        ("fold", ("in_0",)),
        ("norm", ("residual",)),
        ("norm", ("x",)),
        ("gated_activation", ("x",)),
        ("rotary", ("q",)),
        ("rotary", ("q", "k")),
        ("qkv_prepare", ("k_data", "v_data")),
        ("qkv_prepare", ("q", "k_data", "v_data")),
    }


COUNTED = [example for example in examples() if dict(example).get("num_valid")]


@pytest.mark.parametrize("count", [-1, -(2**31), 2**31 - 1, None], ids=["negative", "least", "most", "one more"])
@pytest.mark.parametrize("example", COUNTED, ids=lambda e: e.digest()[:8] + e.op)
def test_no_row_is_valid_if_the_count_is_out_of_range(example, count):
    """Applies to the reference and to every check of a run."""
    plan, args = Plan.select(example, target=Target.cpu()), make_args(example, 2)
    rows = next(spec.shape[spec.valid_axis].size for spec in operands_of(example).values() if spec.valid_rows)
    args.num_valid.fill_(rows + 1 if count is None else count)
    # a single scale of all rows has no valid axis
    counted = [name for name, spec in operands_of(example).items() if spec.valid_rows]
    before = {name: getattr(args, name).clone() for name in counted}
    given = numerics.snapshot(example, args)
    plan.run(args)
    assert all(same_bits(getattr(args, name), was) for name, was in before.items())
    assert numerics.check(example, args, plan.sku, before=given).worst <= 1


def test_every_family_with_num_valid_has_an_example():
    kinds = {example.op for example in COUNTED}
    assert kinds >= {"map", "fold", "norm", "quantize", "dequantize", "gated_activation", "rotary", "sample", "verify_drafts"}
