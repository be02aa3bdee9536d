"""Teams: clusters that share a run of a short context. Where they may, what their SKU says, and what workspace they need."""

import pytest

from opfacade import Preference, Target
from opfacade.autotune import eligible
from opfacade.backends.cuda import attention_decode as cuda
from opfacade.backends.cuda.attention_decode_block import Tuning
from tests.attention.test_decode_default import SM90, chosen, decode

NAMES = {"teams=2": Tuning(teams=2), "cluster=4,teams=4": Tuning(cluster=4, teams=4)}
ONE = decode(1, 4096)


def offered(descriptor, target=SM90):
    """{variant: SKU} of those with teams."""
    return {o.candidate.variant: o.sku for o in eligible(descriptor, Preference(), target) if o.candidate.variant in NAMES}


@pytest.mark.parametrize(
    "descriptor", [ONE, decode(1, 512), decode(1, 16384), decode(2, 4096, 16, 4), decode(1, 99, 40, 8, 64)]
)
def test_teams_are_offered_where_all_of_them_run_at_once(descriptor):
    assert set(offered(descriptor)) == set(NAMES)


@pytest.mark.parametrize(
    "descriptor",
    [
        decode(1, 16400),
        decode(2, 4096),  # 32 clusters of 8
        decode(1, 4096, 256, 8),  # two blocks of heads for each kv head
        decode(1, 4096, kv_split=512),
        decode(1, 4096, kv_split="off"),
        decode(1, 4096, dtype="f32"),
    ],
)
def test_teams_are_not_offered_where_they_do_not_or_have_no_say(descriptor):
    assert offered(descriptor) == {}


def test_a_smaller_device_has_room_for_fewer_teams():
    small = Target("sm_90a", 114, SM90.max_shared_memory)
    assert offered(ONE, small) == {}
    assert set(offered(decode(1, 4096, 16, 4), small)) == set(NAMES)
    assert offered(ONE, Target.parse("sm_80")) == {}


def test_the_default_has_one_team_and_ids_of_it_are_what_they_were():
    default = chosen(ONE)
    assert "teams" not in dict(default.spec)
    assert cuda.workspace(ONE, SM90) == 0
    found = offered(ONE)
    assert {name: dict(sku.spec).get("teams") for name, sku in found.items()} == {"teams=2": 2, "cluster=4,teams=4": 4}
    assert "cluster" not in dict(found["teams=2"].spec)
    assert len({default.id, *(sku.id for sku in found.values())}) == 3


def test_how_many_teams_there_are_follows_the_batch_and_so_do_bits():
    assert {sku.precision_guarantee.batch_invariant for sku in offered(ONE).values()} == {"none"}
    assert all(sku.precision_guarantee.deterministic for sku in offered(ONE).values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("heads", [(8, 8), (32, 8), (28, 4), (40, 2)])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_the_grid_and_the_workspace_are_the_closed_forms_of_the_kernel(name, heads, dim):
    descriptor, tuning = decode(1, 4096, *heads, dim), NAMES[name]
    rows, runs = min(descriptor.group_size, 16), cuda.head_blocks(descriptor)
    blocks, slots = cuda.grid_of(descriptor, SM90, tuning)
    assert (blocks, slots) == (16 * runs, runs * tuning.teams)
    counters = runs * -(-rows * dim // 128)
    assert cuda.workspace(descriptor, SM90, tuning) == slots * rows * (dim + 1) * 4 + counters * 8


def test_one_id_is_one_binary_whatever_the_sizes():
    seen = {}
    for tokens in (1024, 4096, 16384):
        for batch in (1, 2):
            descriptor = decode(batch, tokens, 16, 4)
            for name, sku in offered(descriptor).items():
                spec = cuda.jit_spec(descriptor, SM90, NAMES[name])
                assert seen.setdefault(sku.id, spec) == spec
    assert len(seen) == 2
