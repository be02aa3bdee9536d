"""Candidates and their variants: defaults come first, and each has its own SKU."""

import re
from functools import cache

import pytest

from opfacade import Plan, Preference, Target
from opfacade.core.candidate import with_config
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.select import registry, selection
from opfacade.select.registry import candidates_for, examples

CPU, SM90 = Target.cpu(), Target.parse("sm_90a")
USE = Preference(autotune="use")


def test_variants_stand_behind_all_defaults():
    for kind in {type(e) for e in examples()}:
        flags = [bool(c.config) for c in registry.configs_for(kind)]
        assert flags == sorted(flags)


@cache
def considered():
    """(example, its candidates), for each example and target."""
    return [(example, selection.considered(example, USE, target)) for example in examples() for target in (CPU, SM90)]


def skus():
    """(example, the SKUs of its candidates), for each example and target."""
    return [(example, [option.sku for option in options if option.sku]) for example, options in considered()]


def test_no_two_candidates_of_a_problem_share_a_sku():
    for _, found in skus():
        ids = [sku.id for sku in found]
        assert len(ids) == len(set(ids))


def test_each_reason_has_a_code_and_names_a_field():
    for example, options in considered():
        for option in options:
            assert all(re.fullmatch(r"OPF-S\d{3}", reason.code) for reason in option.reasons), (example.op, option.name)
            assert not any(reason.field.startswith("OPF-") for reason in option.reasons)


def test_an_order_of_error_models_begins_with_exact_and_has_each_that_a_kernel_states():
    for kind in registry.descriptor_types().values():
        assert kind.error_models[0] == "exact"
        assert len(kind.error_models) == len(set(kind.error_models))
    for example, found in skus():
        assert {sku.precision_guarantee.error_model.id for sku in found} <= {*example.error_models}, example.op


ATTENTION = [e for e in examples() if e.op in ("paged_decode", "paged_prefill", "ragged_prefill") and e.kv_split == "auto"]


@pytest.mark.parametrize("example", ATTENTION, ids=lambda e: e.op)
def test_attention_has_other_splits_to_measure(example):
    found = selection.considered(example, Preference(backend="cuda"), SM90)
    default = next((o for o in found if not o.reasons), None)
    if default is None:
        pytest.skip("no kernel for this example")
    splits = [o for o in found if o.candidate.config.startswith(("split=off", "chunk="))]
    variants = [o for o in splits if not o.reasons and o.candidate.impl == default.candidate.impl]
    assert {o.candidate.config for o in variants} >= {f"chunk={n}" for n in (512, 1024, 2048, 4096)}
    for option in variants:
        promise = option.sku.precision_guarantee
        assert promise.batch_invariant == "composition"
        assert promise.error_model.id == default.sku.precision_guarantee.error_model.id
        assert Plan.select(example, Preference(pin=option.sku.id), SM90).sku == option.sku


def test_a_split_that_is_the_default_already_is_no_variant():
    wide = next(e for e in ATTENTION if e.op == "paged_prefill").model_copy(update={"total_num_rows": 4000}).revalidated()
    (option,) = [o for o in selection.considered(wide, USE, SM90) if o.name == "cuda/mma_tile[split=off]"]
    assert [r.code for r in option.reasons] == ["OPF-S017"]


def test_a_variant_can_be_made_of_another_descriptor():
    (base,) = [c for c in candidates_for(BatchPagedDecodeDescriptor) if c.backend == "cuda" and c.impl == "split_kv"]
    fixed = lambda d: d.model_copy(update={"kv_split": 512}).revalidated() if d.kv_split == "auto" else None  # noqa: E731
    variant = with_config(base, "chunk=512", fixed, {"chunk": 512})
    example = next(e for e in examples() if e.op == "paged_decode" and not base.declines(e, SM90))
    facts = dict(variant.sku(example, SM90).spec)
    assert (facts["chunk"], facts["split"]) == (512, "fixed")
    assert variant.sku(example, SM90).precision_guarantee.batch_invariant == "composition"
    assert variant.workspace(example, SM90) == base.workspace(fixed(example), SM90)
    assert variant.jit_spec(example, SM90) == base.jit_spec(fixed(example), SM90)
    assert [r.code for r in variant.declines(fixed(example), SM90)] == ["OPF-S017"]
