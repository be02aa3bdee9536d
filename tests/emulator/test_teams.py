"""Several clusters share a work unit: the result is right for every length, any content of the workspace, and any order of
clusters."""

import pytest
import torch

from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from opfacade.testing.families.attention import structural
from tests import emulator
from tests.support.assert_guarantee import hold

pytestmark = emulator.needed

TEAMS = ("teams=2", "cluster=2,teams=8")
# The lengths of one request: 0, 1, near the size of a tile, fewer tiles than clusters or than CTAs, and uneven shares.
LENGTHS = (0, 1, 63, 64, 65, 129, 447, 1025, 1599)


def decode(group=4, dim=128, dtype="bf16", tokens=1600, kv_heads=2, batch=2, page=16, **more):
    pages = {"num_total_pages": -(-tokens // page), "page_size": page, "num_kv_heads": kv_heads, "head_dim": dim}
    cache = PagedKvCacheDescriptor.model_validate(pages | {"dtype": dtype, "layout": "HND"})
    return BatchPagedDecodeDescriptor(batch_size=batch, num_qo_heads=group * kv_heads, paged_kv=cache, **more)


FP8 = {"dtype": "f8_e4m3", "q_dtype": "bf16"}
CASES = {
    "group 4": decode(),
    "group 1, 64, window, pages of 7": decode(1, 64, "f16", page=7, window_left=300),
    "group 16, 256, cap": decode(16, 256, logits_soft_cap=20.0),
    "group 8, 64, sinks, fp8": decode(8, 64, **FP8, kv_scale="tensor", sinks=True),
    "group 20, block table": decode(20, kv_heads=1, page_table="block"),
    "group 8, window, no lse": decode(8, window_left=100, return_lse=False),
    "group 12, 256, fp8 by head, sinks, cap": decode(
        12, 256, "f8_e5m2", q_dtype="f16", kv_scale="head", sinks=True, logits_soft_cap=9.0, window_left=700
    ),
    "group 3, 128, fp8": decode(3, **FP8, kv_scale="head"),
}
FIRST = {TEAMS[0]: list(CASES)[:2], TEAMS[1]: list(CASES)[2:4]}  # each case once, and two cases for each split mode
HEAVY = pytest.mark.heavy
ALL = [name if name in FIRST[TEAMS[1]] else pytest.param(name, marks=HEAVY) for name in CASES]
PAIRS = [
    pytest.param(teams, name, id=f"{teams}-{name}", marks=() if name in FIRST[teams] else HEAVY)
    for teams in TEAMS
    for name in CASES
]
DIMS = [
    pytest.param(teams, dim, marks=() if dim == due else HEAVY)
    for teams, due in zip(TEAMS, (128, 64), strict=True)
    for dim in (64, 128, 256)
]


def subject(name, teams=TEAMS[0]):
    return emulator.subject(CASES[name], config=teams)


@pytest.mark.parametrize(("teams", "name"), PAIRS)
def test_teams_keep_the_error_bound_at_any_length(name, teams):
    descriptor = CASES[name]
    for seed, length in enumerate(LENGTHS):
        room = descriptor.kv_token_bound - 2 * descriptor.paged_kv.page_size
        hold(subject(name, teams), seed, inputs.DrawnLengths(kv=[min(length, room), LENGTHS[-1 - seed] % (room - length + 1)]))


@pytest.mark.parametrize("name", ALL)
def test_every_key_is_visited_once(name):
    assert structural.every_key_is_visited_once(subject(name), 3) == []


def outputs(tried, workspace, seed=4, lengths=None):
    """o and lse as one tensor."""
    args = tried.args(seed, lengths)
    args.o.fill_(float("nan"))
    args.lse.fill_(float("nan"))
    tried.run(args, workspace)
    return torch.cat([args.o.float().flatten(), args.lse.flatten()])


@pytest.mark.parametrize("teams", TEAMS)
def test_the_workspace_may_have_any_content_and_can_be_reused(teams):
    size = subject("group 4", teams).plan.workspace_size
    assert size > 0
    noise = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(5))
    ones = torch.full((size,), 255, dtype=torch.uint8)
    used = (torch.zeros(size, dtype=torch.uint8), ones, noise, noise, ones, noise)
    seen = [outputs(subject("group 4", teams), workspace) for workspace in used]
    assert all(torch.equal(seen[0], other) and not other.isnan().any() for other in seen)


@pytest.mark.parametrize(("teams", "dim"), DIMS)
def test_the_bits_do_not_depend_on_which_cluster_or_warp_is_last(teams, dim, monkeypatch):
    """The emulator runs clusters one after the other: in this test from the last to the first, and in each cluster the last
    warps first. Most errors change lse, which is f32."""
    tried = emulator.subject(decode(16, dim, "f16", batch=3), config=teams)
    every_team = inputs.DrawnLengths(kv=[1024, 500, 60])
    forwards = [outputs(tried, None, seed, every_team) for seed in range(3)]
    emulator.last_first(monkeypatch)
    backwards = [outputs(tried, None, seed, every_team) for seed in range(3)]
    assert all(torch.equal(one, other) and not one.isnan().any() for one, other in zip(forwards, backwards, strict=True))


@pytest.mark.parametrize("teams", TEAMS)
def test_every_cluster_gets_keys_of_a_long_request(teams):
    """If a cluster had no keys, the result would be right, but the kernel slower."""
    tried = subject("group 4", teams)
    workspace = torch.zeros(tried.plan.workspace_size, dtype=torch.uint8)
    outputs(tried, workspace, 1, inputs.DrawnLengths(kv=[1024, 0]))  # one tile for each of sixteen CTAs
    slots = 2 * 2 * dict(tried.plan.sku.spec)["teams"]  # slots with equally many rows each, after all other data
    lse = workspace[-4 * 4 * slots :].view(torch.float32)
    assert lse[: 4 * slots // 2].isfinite().all()
    assert torch.equal(lse[4 * slots // 2 :], torch.full((4 * slots // 2,), -float("inf")))
