"""Layers of experts on the kernels of their steps, in the emulator: bounds, the workspace, other batches, and compilation."""

from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference, Target, explain, jit
from opfacade.core.candidate import COMPILER_TOO_OLD
from opfacade.core.descriptor import forget_specializations, operands_of
from opfacade.errors import OpfacadeError
from opfacade.plans._composites.steps import Last
from opfacade.plans.moe import EXAMPLES, FusedMoeDescriptor, Router
from opfacade.testing import determinism, numerics
from opfacade.testing.bits import same_bits
from opfacade.tools.warmup import warm
from tests import emulator
from tests.families.moe.layers import by_hand, drawn
from tests.support.assemblers import any_assembler

CUDA, SM_90A = Preference(backend="cuda"), Target.parse("sm_90a")
LAYERS = [d for d in EXAMPLES if d.op == "fused_moe" and d.dtype != "f32"]
RARE = (LAYERS[0], LAYERS[-1])  # other tests use the kernels of these layers too
TRIED = [pytest.param(d, id=d.digest()[:6], marks=pytest.mark.heavy if d in RARE else ()) for d in LAYERS]
SIZES = {"total_num_rows": 6, "experts": 5, "top_k": 2, "hidden": 24, "width": 16, "dtype": "bf16"}


@pytest.fixture(autouse=True)
def _any_assembler():
    with any_assembler():
        yield


def ran(d, args):
    emulator.subject(d).run(args)
    return args


@emulator.needed
@pytest.mark.parametrize("d", TRIED)
def test_a_layer_keeps_its_bound_and_equals_the_loop_over_rows_and_slots(d):
    args, subject = drawn(d), emulator.subject(d)
    before = numerics.snapshot(d, args)
    subject.run(args)
    assert numerics.check(d, args, subject.plan.sku, before=before).worst <= 1
    want = by_hand(d, args)
    assert (args.out.double() - want).abs().max() <= 0.05 * want.abs().max()


@emulator.needed
def test_ids_outside_the_local_experts_contribute_nothing_for_any_workspace_content():
    """With the second content, uninitialised rows of the workspace are NaN."""
    d = FusedMoeDescriptor(**SIZES, weights_at="input", shared_width=8, halves="interleaved", first_expert=1, num_local=3)
    args, subject, results = drawn(d), emulator.subject(d), []
    args.ids[2], args.ids[3, 1], args.ids[4] = -1, 99, 0
    for byte in (0, 0xFF):
        args.out.fill_(float("nan"))
        subject.run(args, torch.full((subject.plan.workspace_size,), byte, dtype=torch.uint8))
        results.append(args.out.clone())
    assert same_bits(*results)
    want = by_hand(d, args)
    assert (results[0].double() - want).abs().max() <= 0.05 * want.abs().max()


@emulator.needed
def test_no_rows_write_nothing():
    d = FusedMoeDescriptor(**(SIZES | {"total_num_rows": 0}))
    assert ran(d, drawn(d)).out.shape == (0, 24)


@emulator.needed
def test_bits_of_a_row_do_not_depend_on_the_batch():
    d = FusedMoeDescriptor(**SIZES, router=Router(dtype="f32", renormalise=True), halves="interleaved")
    shown = determinism.batch_invariance(emulator.subject(d), determinism.Campaign(2, 2, 3, 1), seed=1)
    assert shown.different == 0 < shown.compared


@emulator.needed
def test_a_second_batch_is_not_affected_by_the_counts_of_the_first():
    """Both calls use one launcher, as in a replayed graph."""
    d, results = FusedMoeDescriptor(**SIZES), []
    args, subject = drawn(d), emulator.subject(d)
    workspace = torch.zeros(subject.plan.workspace_size, dtype=torch.uint8)
    first, second = torch.zeros_like(args.ids), torch.full_like(args.ids, 4)
    first[:, 1], second[:, 1] = 3, 2
    for ids in (first, second, first):
        subject.run(replace(args, ids=ids), workspace)
        results.append(args.out.clone())
        want = by_hand(d, replace(args, ids=ids))
        assert (args.out.double() - want).abs().max() <= 0.05 * want.abs().max()
    assert same_bits(results[0], results[2])


def plan_of(d, **more):
    return Plan.select(d, Preference(backend="cuda", **more), SM_90A)


@pytest.mark.parametrize(("d", "shared"), [(LAYERS[0], 0), (FusedMoeDescriptor(**SIZES, weights_at="input"), 1)])
def test_the_kernels_of_a_layer_are_those_of_its_steps_without_duplicates(d, shared):
    """shared: steps that use the kernel of another step, such as both products of an expert if rows are gathered before."""
    of_steps = [Plan.select(step.problem, CUDA, SM_90A) for step in d.steps()]
    plan = plan_of(d)
    assert plan.jit_spec is None
    assert set(plan.jit_specs) == {step.jit_spec for step in of_steps}
    assert len(plan.jit_specs) == len(set(plan.jit_specs)) == len(of_steps) - shared
    assert plan.workspace_size % 256 == 0


@pytest.mark.parametrize("way", [lambda plan: plan.compile(), lambda plan: warm([plan], 1, lambda step: None)])
def test_every_kernel_of_a_layer_is_built_ahead_of_time(monkeypatch, way):
    plan, built = plan_of(LAYERS[1]), []
    monkeypatch.setattr(jit, "build", lambda spec, **facts: built.append(spec))
    monkeypatch.setattr(jit, "is_built", lambda spec: False)
    way(plan)
    assert set(built) == {*plan.jit_specs, jit.HOST}


def test_a_layer_is_cached_only_if_all_its_kernels_are(monkeypatch):
    plan = plan_of(LAYERS[1])
    for missing in (*plan.jit_specs, None):
        monkeypatch.setattr(jit, "cache_state", lambda spec, missing=missing: "absent" if spec == missing else "shared")
        assert plan.cache_state == ("shared" if missing is None else "absent")


def test_the_digest_of_a_layer_covers_all_its_kernels(monkeypatch):
    specs = plan_of(LAYERS[1]).jit_specs
    whole, words = jit.code_digest_of(specs), {spec: f"{i}" * 64 for i, spec in enumerate(specs)}
    assert len({whole, *(jit.code_digest_of(specs[:i] + specs[i + 1 :]) for i in range(len(specs)))}) == len(specs) + 1
    monkeypatch.setattr(jit, "compiler_digest", lambda spec: words[specs[0]])
    assert jit.compiler_digest_of(specs) == "0" * 64
    monkeypatch.setattr(jit, "compiler_digest", words.__getitem__)
    assert jit.compiler_digest_of(specs) not in words.values()
    monkeypatch.setattr(jit, "compiler_digest", lambda spec: "" if spec == specs[-1] else "0" * 64)
    assert jit.compiler_digest_of(specs) == ""


def test_another_activation_gives_another_sku_and_another_size_does_not():
    one, other = (plan_of(FusedMoeDescriptor(**(SIZES | more))).sku for more in ({}, {"activation": "gelu"}))
    assert dict(one.spec)["parts"] != dict(other.spec)["parts"]
    assert {part.partition("=")[0] for part in one.id.split("/")[7].split(",")} == {"halves", "parts"}
    assert plan_of(FusedMoeDescriptor(**(SIZES | {"total_num_rows": 7}))).sku.id == one.id


@pytest.mark.parametrize("d", [d for d in EXAMPLES if d.op == "fused_moe"], ids=lambda d: d.digest()[:6])
def test_a_step_receives_operands_that_its_kernel_accepts(d):
    """A step's call is not checked: the operands of the whole layer are at least as strict as those of the steps, and
    intermediate tensors are contiguous and aligned."""
    whole = operands_of(d)
    for step in d.steps():
        for name, given in step.tensors.items():
            wanted = operands_of(step.problem)[name]
            if isinstance(given, Last) or given not in whole:
                assert wanted.alignment <= 256
                continue
            have = whole[given]
            assert [dim.size for dim in have.shape] == [dim.size for dim in wanted.shape]
            assert (have.dtype, have.step, have.multiple) == (wanted.dtype, wanted.step, wanted.multiple)
            assert have.layout == wanted.layout or (have.layout, wanted.layout) == ("rows", "strided")
            assert have.alignment % wanted.alignment == 0
            assert have.written >= wanted.written


def test_a_dtype_without_a_product_kernel_is_refused_with_the_name_of_the_step():
    told = str(explain(FusedMoeDescriptor(**(SIZES | {"dtype": "f32"})), CUDA, target=SM_90A))
    assert "up.dtype=f32 (allowed: f16, bf16, " in told


def test_an_assembler_that_is_too_old_is_reported_once_and_does_not_change_the_id():
    candidate, sku = plan_of(LAYERS[2])._candidate, plan_of(LAYERS[2]).sku
    forget_specializations()
    with patch("opfacade.backends.cuda.ptxas.release", return_value=(12, 0)):
        found = explain(LAYERS[2], CUDA, target=SM_90A)
        assert candidate.sku(LAYERS[2], SM_90A) == sku
    reasons = next(option.reasons for option in found.options if option.candidate.backend == "cuda")
    assert [(reason.code, reason.field) for reason in reasons] == [(COMPILER_TOO_OLD, "ptxas")]


@emulator.needed
def test_the_host_library_refuses_an_unchecked_call():
    """Bindings do not check their operands, and neither does a step."""
    d = FusedMoeDescriptor(**SIZES)
    plan, args = plan_of(d), drawn(d)
    with patch("opfacade.backends.cuda.support.launcher", emulator.launcher):
        launch = plan._candidate.launcher(d, plan.target, plan.sku, True)
    refuse = launch.refuse_unsound(plan.workspace_size, operands_of(d))
    with pytest.raises(OpfacadeError) as caught:
        refuse(replace(args, x=args.x[:, 1:]), torch.zeros(plan.workspace_size, dtype=torch.uint8))
    assert "x" in {issue.argument for issue in caught.value.issues}
