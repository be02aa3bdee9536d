"""Configs of decode with other pipelines: selection never chooses them by default, each has its own SKU, and each is as
accurate as the default."""

import pytest

from opfacade import Preference, Target, jit
from opfacade.backends.cuda.attention.decode_configs import CONFIGS
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.select.selection import choose, considered, survey
from opfacade.testing.families.attention import structural
from opfacade.testing.subject import Subject
from tests import emulator
from tests.support.assert_guarantee import hold

SM_90A = Target.parse("sm_90a")


def decode(head_dim=128, dtype="bf16", pages=640, batch=5, **more):
    cache = PagedKvCacheDescriptor(
        num_total_pages=pages, page_size=16, num_kv_heads=2, head_dim=head_dim, dtype=dtype, layout="HND"
    )
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=8, paged_kv=cache, **more)


LONG, SHORT = decode(), decode(pages=64)
CASES = {
    "split=auto": LONG,
    "split=pieces": decode(batch=300),
    "warps=2,blocks=4": LONG,
    "warps=2,blocks=2": decode(64, "f16", sinks=True, kv_split="off"),
    "warps=4,blocks=2": decode(64),
    "warps=4,blocks=1": decode(256, kv_split=100),
    "warps=8,blocks=1": decode(128, "f8_e4m3", q_dtype="bf16", kv_scale="head"),
    "cluster=1": SHORT,
    "cluster=2": decode(64, pages=64, window_left=70),
    "cluster=4": decode(256, pages=64, logits_soft_cap=9.0),
    "cluster=8": decode(pages=300, batch=1),
    "teams=2": decode(pages=100, batch=3),
    "teams=4": decode(256, pages=60, batch=1, window_left=500, logits_soft_cap=9.0),
    "cluster=2,teams=8": decode(64, pages=100, batch=2, sinks=True),
}


def of(descriptor):
    """{config: option} for the configs with another pipeline."""
    names = {candidate.config for candidate in CONFIGS}
    return {o.candidate.config: o for o in considered(descriptor, Preference(), SM_90A) if o.candidate.config in names}


def test_every_config_has_a_case():
    assert {candidate.config for candidate in CONFIGS} == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_config_has_its_own_binary_and_sku_and_the_guarantee_of_its_split(name):
    descriptor = CASES[name]
    default = choose(descriptor, SM_90A, survey(descriptor, Preference(), SM_90A))
    option = of(descriptor)[name]
    assert option.reasons == ()
    assert default.candidate.config == ""
    assert option.sku.id != default.sku.id
    specs = [o.candidate.jit_spec(descriptor, SM_90A) for o in (option, default)]
    assert specs[0] != specs[1]
    promise = option.sku.precision_guarantee
    assert promise.deterministic
    # With even shares, pieces and clusters the split depends on the batch; the default may be a fixed chunk, which does not.
    follows = dict(option.sku.spec)["split"] in ("auto", "pieces", "cluster")
    assert promise.batch_invariant == ("none" if follows else "composition")


def test_cluster_configs_need_short_contexts_and_warp_configs_long_ones():
    allowed = {kind: {n for n, o in of(d).items() if not o.reasons} for kind, d in (("long", LONG), ("short", SHORT))}
    assert allowed["short"] == {"cluster=1", "cluster=2", "cluster=4"}
    shapes = {"warps=2,blocks=4", "warps=2,blocks=2", "warps=4,blocks=1", "warps=8,blocks=1"}
    assert allowed["long"] == {"split=auto", "split=pieces"} | shapes  # the default split there is a fixed chunk
    assert {name for name, o in of(decode(64, "f32")).items() if not o.reasons} == {"split=auto"}


def test_a_config_that_exceeds_shared_memory_or_equals_the_default_is_not_offered():
    allowed = {name for name, option in of(decode(256)).items() if not option.reasons}
    assert allowed == {
        "split=auto",
        "warps=4,blocks=1",
    }  # 2 warps and 2 CTAs are the default here; 8 warps and 4 CTAs exceed the shared memory


@pytest.mark.parametrize("name", ["warps=2,blocks=4", "warps=8,blocks=1", "cluster=2", "teams=2", "cluster=2,teams=8"])
def test_a_config_compiles_without_spills(name):
    jit.build(of(CASES[name])[name].candidate.jit_spec(CASES[name], SM_90A))  # the build raises if ptxas reports spills


@emulator.needed
@pytest.mark.parametrize("name", [n if n[-1] in "14" else pytest.param(n, marks=pytest.mark.heavy) for n in CASES])
def test_a_config_keeps_the_error_bound_in_the_emulator(name):
    hold(emulator.subject(CASES[name], config=name), seed=3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_config_keeps_the_error_bound_on_the_device(name):
    subject = Subject(CASES[name], "cuda", "cuda", config=name)
    for seed in range(4):
        hold(subject, seed)
    assert structural.every_key_is_visited_once(subject, 1) == []
