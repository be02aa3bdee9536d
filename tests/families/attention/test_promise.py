"""The guarantee of the attention reference: the unit roundoff of its compute type, its conditions, and the facts in its SKU."""

import pytest

from opfacade import Plan, Preference, Target
from opfacade.backends.reference.declared import reference
from opfacade.plans.attention import BatchRaggedPrefillDescriptor
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.testing.matrix import matrix
from opfacade.variant import Variant, score

SHAPE = {"batch_size": 1, "total_num_rows": 4, "total_kv_rows": 9, "num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 64}


def sku_of(descriptor):
    return Plan.select(descriptor, Preference(backend="reference"), Target.cpu()).sku


def ragged(dtype="f16", **more):
    return sku_of(BatchRaggedPrefillDescriptor(causal=False, dtype=dtype, **SHAPE, **more))


@pytest.mark.parametrize(
    ("dtype", "wide", "u"), [("f16", "f32", 2.0**-24), ("bf16", "f32", 2.0**-24), ("f32", "f64", 2.0**-53)]
)
def test_the_roundoff_is_that_of_the_compute_type(dtype, wide, u):
    promise = ragged(dtype).precision_guarantee
    found = dict(promise.error_model.constants)
    assert promise.error_model.id == f"attention-{wide}"
    assert (promise.math_precision, promise.accumulator) == (wide, wide)
    assert (found["u_acc"], found["u_p"], found["exp"], found["tanh"]) == (u, u, 4 * u, 4 * u)
    assert (found["k_step"], found["lanes"], found["split"]) == (1.0, 1.0, 0.0)
    assert "function" not in found


def test_a_logits_variant_adds_an_error_term_and_a_condition():
    plain, changed = (ragged(**more).precision_guarantee for more in ({}, {"variant": Variant(logits=score * 2.0)}))
    assert dict(changed.error_model.constants)["function"] == 4 * 2.0**-24
    assert [c.id for c in plain.conditions] == ["host_reads_indices"]
    assert [c.id for c in changed.conditions] == ["host_reads_indices", "finite_logits"]


def test_sinks_and_scales_are_facts_of_the_sku():
    assert "sinks" not in dict(ragged().spec)
    assert dict(ragged(sinks=True).spec)["sinks"] is True
    scaled = sku_of(matrix()["prefill-off-fp8-products"])
    assert (dict(scaled.spec)["q_scale"], dict(scaled.spec)["kv_scale"]) == ("tensor", "head")


@pytest.mark.parametrize("revision", [1, 3])
def test_a_reference_has_its_declared_revision(revision):
    made = reference(MergeStatesDescriptor, "merge-f32", (("o", "f16"),), lambda descriptor, args: None, revision=revision)
    problem = MergeStatesDescriptor(num_states=2, total_num_rows=3, num_heads=1, head_dim=8, dtype="f16")
    assert made.sku(problem, Target.cpu()).revision == revision
