"""Teams are several clusters that share one work unit with a short context. The tests check when teams are offered, the fields
of their SKU, and the size of their workspace."""

import pytest

from opfacade import Preference, Target
from opfacade.backends.cuda.attention import decode as cuda
from opfacade.backends.cuda.attention.decode_block import DecodeConfig
from opfacade.tune.tune import eligible
from tests.families.attention.test_decode_default import SM90, chosen, decode

NAMES = {
    "teams=2": DecodeConfig(clusters=2),
    "teams=4": DecodeConfig(clusters=4),
    "cluster=2,teams=8": DecodeConfig(cluster=2, clusters=8),
}
FOUR = decode(1, 1024, 16, 4)  # the default is one cluster per work unit


def offered(descriptor, target=SM90):
    """{config: SKU} for the offered configs with teams."""
    return {o.candidate.config: o.sku for o in eligible(descriptor, Preference(), target) if o.candidate.config in NAMES}


@pytest.mark.parametrize(
    ("descriptor", "names"),
    [
        (FOUR, {"teams=2", "cluster=2,teams=8"}),  # one cluster of 8 CTAs too many for teams=2 with cluster=8
        (decode(1, 512), {"cluster=2,teams=8"}),
        (decode(1, 99, 16, 2, 64), set(NAMES)),
        (decode(1, 4096), set()),  # teams are the default
        (decode(1, 8192, 16, 2), {"teams=2", "cluster=2,teams=8"}),  # the default uses four teams
        (decode(1, 16384), {"cluster=2,teams=8"}),
        (decode(1, 16400), set()),
        (decode(2, 4096), set()),  # needs 128 clusters of 2 CTAs
        (decode(1, 4096, 256, 8), set()),  # two head blocks per KV head
        (decode(1, 4096, kv_split=512), set()),
        (decode(1, 4096, kv_split="off"), set()),
        (decode(1, 4096, dtype="f32"), set()),
    ],
)
def test_team_configs_are_offered_if_all_clusters_are_resident_and_differ_from_the_default(descriptor, names):
    assert set(offered(descriptor)) == names


@pytest.mark.parametrize(
    ("descriptor", "shape"),
    [
        (decode(1, 4096), (2, 8)),
        (decode(1, 8192), (2, 8)),
        (decode(2, 8192, 16, 4), (2, 8)),
        (decode(1, 4096, 16, 2), (8, 4)),
        (decode(1, 2064), (2, 8)),
        (decode(1, 2048), (8, 1)),  # one cluster reads this many tokens as fast
        (decode(2, 4096, 16, 4), (8, 1)),  # the bound covers both requests together
        (decode(1, 4096, dtype="f8_e4m3"), (8, 1)),  # fp8 keys have half as many bytes
        (decode(1, 4112, dtype="f8_e4m3"), (2, 8)),
        (decode(1, 1040, dim=256), (2, 8)),
        (decode(1, 4096, 12, 12), (8, 1)),  # more work units than resident clusters
    ],
)
def test_the_bounds_select_the_number_of_clusters_per_work_unit(descriptor, shape):
    spec = cuda.jit_spec(descriptor, SM90)
    facts = dict(spec.params)
    assert facts["split"] == "cluster"
    assert (facts["cluster"], facts.get("teams", 1)) == shape


def test_a_device_with_fewer_sms_gets_fewer_teams():
    small = Target("sm_90a", 114, SM90.max_shared_memory)
    assert dict(cuda.jit_spec(decode(1, 4096), small).params).get("teams", 1) == 1
    assert dict(cuda.jit_spec(decode(1, 4096, 12, 6), small).params)["teams"] == 8
    assert set(offered(FOUR, small)) == {"teams=2", "cluster=2,teams=8"}
    assert offered(FOUR, Target.parse("sm_80")) == {}


def test_one_cluster_per_unit_can_be_pinned_under_its_previous_id():
    default, short = chosen(decode(1, 4096)), chosen(decode(1, 2048))
    assert dict(default.spec).items() >= {"split": "cluster", "cluster": 2, "teams": 8}.items()
    assert {"cluster", "teams"}.isdisjoint(dict(short.spec))
    alone = {o.candidate.config: o.sku for o in eligible(decode(1, 4096), Preference(), SM90)}["cluster=8"]
    assert alone.id == short.id
    assert "cluster=8" not in {o.candidate.config for o in eligible(decode(1, 2048), Preference(), SM90)}
    assert cuda.workspace(decode(1, 2048), SM90) == 0


def test_sku_with_teams_is_deterministic_and_not_batch_invariant():
    assert {sku.precision_guarantee.batch_invariant for sku in offered(FOUR).values()} == {"none"}
    assert all(sku.precision_guarantee.deterministic for sku in offered(FOUR).values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [(4, 4), (28, 4), (40, 2), (2, 1)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_grid_and_the_workspace_equal_the_formulas_of_the_kernel(name, heads, dim):
    descriptor, config = decode(1, 4096, *heads, dim), NAMES[name]
    rows, runs = min(descriptor.group_size, 16), cuda.head_blocks(descriptor)
    if runs * config.cluster * config.clusters > cuda.clusterable_sms(SM90.sm_count, config.cluster):
        return  # Selection never offers this config, because not all clusters would be resident.
    blocks, slots = cuda.grid_of(descriptor, SM90, config)
    assert (blocks, slots) == (config.cluster * config.clusters * runs, runs * config.clusters)
    counters = runs * -(-rows * dim // 128)
    assert cuda.workspace(descriptor, SM90, config) == slots * rows * (dim + 1) * 4 + counters * 8


def test_one_sku_id_has_one_binary_for_all_sizes():
    seen = {}
    for tokens in (1024, 4096, 16384):
        for batch in (1, 2):
            descriptor = decode(batch, tokens, 16, 2)
            for name, sku in offered(descriptor).items():
                spec = cuda.jit_spec(descriptor, SM90, NAMES[name])
                assert seen.setdefault(sku.id, spec) == spec
    assert len(seen) == 3
