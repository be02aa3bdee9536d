"""Every op has a harness, and what it draws, lists and says is of that op."""

import random
from importlib import import_module

import pytest

from opfacade.core.descriptor import inout
from opfacade.select.registry import descriptor_types, examples, families
from opfacade.testing.harness import harness_for, harness_of
from opfacade.testing.problems import OPS


@pytest.mark.parametrize("family", families())
def test_a_family_has_a_harness_for_each_of_its_ops(family):
    found = import_module(f"opfacade.testing.families.{family}").HARNESSES
    assert set(found) == {op for op, kind in descriptor_types().items() if kind.family() == family}


@pytest.mark.parametrize("op", OPS)
def test_draws_and_cases_are_of_the_op(op):
    harness = harness_for(op)
    drawn = [harness.problem(op, 1, 600), harness.special_problem(op, 1, 600), harness.small(op, random.Random(1))]
    assert {d.op for d in (*drawn, *harness.cases(op).values())} == {op}
    assert harness.problem(op, 1, 600) == drawn[0] != harness.problem(op, 2, 600)
    assert harness.has_special == (type(harness).special is not type(harness).__mro__[-2].special)


@pytest.mark.parametrize("example", examples(), ids=lambda e: e.op)
def test_lengths_add_up_to_the_bounds(example):
    found = harness_of(example).lengths(example)
    for lengths, total in ((found.q, "total_num_rows"), (found.kv, "total_kv_rows")):
        assert lengths is None or total not in dict(example) or sum(lengths) == dict(example)[total]


def test_operands_that_are_overwritten_are_found_by_their_role():
    found = {(e.op, inout(e)) for e in examples() if inout(e)}
    assert found == {
        ("paged_kv_append", ("k_data", "v_data")),
        ("merge_states", ("states_o", "states_lse")),
        ("map", ("in_0",)),
        ("adjust_logits", ("logits",)),
        ("fold", ("in_0",)),
        ("norm", ("residual",)),
        ("norm", ("x",)),
        ("gated_activation", ("x",)),
        ("rotary", ("q",)),
        ("rotary", ("q", "k")),
        ("qkv_prepare", ("k_data", "v_data")),
        ("qkv_prepare", ("q", "k_data", "v_data")),
    }
