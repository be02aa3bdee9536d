"""Configs of the prefill for sm_90a: selection never chooses them by default, each has its own binary, and each is as accurate
as the default."""

from contextlib import nullcontext
from unittest.mock import patch

import pytest

from opfacade import Preference, Target, jit
from opfacade.backends.cuda import ptxas
from opfacade.backends.cuda.attention.prefill_configs import CONFIGS
from opfacade.errors import ToolchainError
from opfacade.plans._attention.variant_examples import alibi
from opfacade.plans.attention import BatchPagedPrefillDescriptor, BatchRaggedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.select.selection import choose, considered, survey
from opfacade.testing.families.attention import structural
from opfacade.testing.subject import Subject
from tests import emulator
from tests.support.assert_guarantee import hold

SM_90A = Target.parse("sm_90a")
TOO_OLD = bool(list(ptxas.reasons()))  # depends on the installed assembler


@pytest.fixture(autouse=True)
def _any_assembler():
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        yield


def paged(head_dim=64, dtype="bf16", page_size=16, **more):
    cache = PagedKvCacheDescriptor(
        num_total_pages=40, page_size=page_size, num_kv_heads=2, head_dim=head_dim, dtype=dtype, layout="HND"
    )
    return BatchPagedPrefillDescriptor(
        batch_size=2, total_num_rows=60, num_qo_heads=8, causal=more.pop("causal", True), paged_kv=cache, **more
    )


def ragged(head_dim=128, head_dim_vo=None, **more):
    return BatchRaggedPrefillDescriptor(
        batch_size=2, total_num_rows=60, total_kv_rows=300, num_qo_heads=4, num_kv_heads=2, head_dim=head_dim,
        head_dim_vo=head_dim_vo, dtype="f16", causal=True, **more,
    )  # fmt: skip


FP8 = {"dtype": "f8_e4m3", "q_dtype": "f8_e4m3", "o_dtype": "bf16"}
CASES = {
    "keys-d64": ("keys=64", paged(window_left=50)),
    "keys-page-1": ("keys=64", paged(page_size=1, kv_split=100)),
    "keys-d128": ("keys=64", ragged(kv_split="off", sinks=True)),
    "keys-uneven": ("keys=64", ragged(192, 128)),
    "keys-alibi": ("keys=64", paged(128, variant=alibi(8), custom_mask=True, kv_split="off")),
    "turns-d64": ("turns=false", paged(logits_soft_cap=9.0)),
    "turns-d256": ("turns=false", paged(256, page_size=64, causal=False)),
    "turns-fp8-cache": ("turns=false", paged(128, "f8_e4m3", q_dtype="bf16", kv_scale="head")),
}


def of(descriptor):
    """{config: option} for the configs that split the prefill in another way."""
    names = {candidate.config for candidate in CONFIGS}
    options = considered(descriptor, Preference(), SM_90A)
    return {o.candidate.config: o for o in options if o.candidate.config in names and not o.reasons}


def test_every_config_has_a_case():
    assert {candidate.config for candidate in CONFIGS} == {name for name, _ in CASES.values()}


@pytest.mark.parametrize("case", CASES)
def test_a_config_has_its_own_binary_and_sku_and_the_guarantee_of_its_split(case):
    name, descriptor = CASES[case]
    default = choose(descriptor, SM_90A, survey(descriptor, Preference(), SM_90A))
    option = of(descriptor)[name]
    assert default.candidate.config == ""
    assert option.sku.id != default.sku.id
    assert option.candidate.jit_spec(descriptor, SM_90A) != default.candidate.jit_spec(descriptor, SM_90A)
    ours, theirs = (o.sku.precision_guarantee for o in (option, default))
    assert (ours.deterministic, ours.batch_invariant) == (theirs.deterministic, theirs.batch_invariant)


def test_the_error_bound_uses_the_tile_size_of_the_config():
    name, descriptor = CASES["keys-d64"]
    constants = [
        dict(o.sku.precision_guarantee.error_model.constants)["tile"]
        for o in (of(descriptor)[name], of(descriptor)["turns=false"])
    ]
    assert constants == [64.0, 96.0]


def test_a_config_that_changes_nothing_is_not_offered():
    assert set(of(paged(256))) == {"turns=false"}  # tiles of head_dim 256 have 64 keys
    assert set(of(paged(128, "f8_e4m3", q_dtype="bf16"))) == {"turns=false"}
    assert set(of(paged(128, **FP8))) == set()


@pytest.mark.parametrize("case", ["keys-d128", "keys-uneven", "turns-d64"])
def test_a_config_compiles_without_spills_or_an_old_assembler_refuses_it(case):
    name, descriptor = CASES[case]
    spec = of(descriptor)[name].candidate.jit_spec(descriptor, SM_90A)
    with pytest.raises(ToolchainError, match="OPF-J013") if TOO_OLD else nullcontext():
        jit.build(spec)  # the build raises if ptxas reports spills


QUICK = ("keys-d64", "keys-page-1")


@emulator.needed
@pytest.mark.parametrize("case", [c if c in QUICK else pytest.param(c, marks=pytest.mark.heavy) for c in CASES])
def test_a_config_keeps_the_error_bound_in_the_emulator(case):
    name, descriptor = CASES[case]
    hold(emulator.subject(descriptor, config=name), seed=3)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_a_config_keeps_the_error_bound_on_the_device(case):
    name, descriptor = CASES[case]
    subject = Subject(descriptor, "cuda", "cuda", config=name)
    for seed in range(4):
        hold(subject, seed)
    assert structural.every_key_is_visited_once(subject, 1) == []
