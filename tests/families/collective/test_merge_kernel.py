"""The emulated merge of states over ranks in one launch: every rank is a thread, and stores to peers arrive as late as the
memory model allows."""

import math
import threading
import time

import pytest
import torch

from opfacade.backends.cuda.collective import merge_across
from opfacade.core.target import Target
from opfacade.plans.cascade import MergeStatesDescriptor
from opfacade.plans.collective import MergeAcrossArgs, MergeAcrossDescriptor
from tests import emulator
from tests.support.local_peers import Modules, on_peers

pytestmark = emulator.needed
TARGET = Target.parse("sm_90a")
MODULES = Modules()
KINDS = {"bf16": torch.bfloat16, "f32": torch.float32}
WAYS = [pytest.param(0, id="places"), pytest.param(1 << 18, id="lines")]


def descriptor(**fields):
    base = {"world": 2, "total_num_rows": 5, "num_heads": 6, "head_dim": 64, "dtype": "bf16", "scatter": "heads"}
    return MergeAcrossDescriptor(**(base | fields))


def states(d, rank):
    """(o, lse) of a rank. One state of each rank is empty, with NaN as o; row 0 has no state on any rank."""
    g = torch.Generator().manual_seed(rank)
    shape = (d.states, d.total_num_rows, d.num_heads)
    o, lse = torch.randn(*shape, d.head_dim, generator=g).to(KINDS[d.dtype]), torch.randn(shape, generator=g) * 4
    lse[0, rank % d.total_num_rows], lse[:, 0] = -math.inf, -math.inf
    o[lse == -math.inf] = math.nan
    return o, lse


def sinks_of(d):
    """A sink that outweighs all states, a sink of weight zero, and sinks of ordinary size."""
    if not d.sinks:
        return None
    sinks = torch.randn(d.num_heads, generator=torch.Generator().manual_seed(99)) * 4
    sinks[0], sinks[-1] = 30.0, -math.inf
    return sinks


def run(d, group, o_part, lse_part):
    kept = (d.total_num_rows, d.kept_heads)
    o, lse = torch.full((*kept, d.head_dim), -7.0).to(KINDS[d.dtype]), torch.full(kept, -7.0)
    module = MODULES.of(group.rank, merge_across.jit_spec(d, TARGET))
    args = MergeAcrossArgs(o_part=o_part, lse_part=lse_part, o=o, lse=lse, sinks=sinks_of(d), group=group)
    merge_across.runner(d, module)(args, group.link)
    return o, lse


def own_heads(d, rank):
    return slice(rank * d.kept_heads, (rank + 1) * d.kept_heads) if d.scatter == "heads" else slice(None)


def in_order(d, rank, given=None):
    """The states of all ranks for the heads that this rank keeps, in the order of the merge."""
    found = given or [states(d, r) for r in range(d.world)]
    return [torch.stack([one[i] for one in found], 1).flatten(0, 1)[:, :, own_heads(d, rank)].contiguous() for i in range(2)]


def by_hand(d, rank, given=None):
    """The merged o and lse in f64."""
    o, lse = (one.double() for one in in_order(d, rank, given))
    sinks = sinks_of(d)
    total = lse.logsumexp(0)
    if sinks is not None:
        total = torch.logaddexp(total, sinks[own_heads(d, rank)].double().expand_as(total))
    weight = torch.where(lse == -math.inf, 0.0, (lse - total).exp())
    return (weight[..., None] * o.nan_to_num(0)).sum(0), total


def of_one_gpu(d, rank):
    """The bits of the emulated merge_states, with a sink as an additional state whose o is 0."""
    o_part, lse_part = in_order(d, rank)
    sinks = sinks_of(d)
    if sinks is not None:
        o_part = torch.cat([o_part, torch.zeros_like(o_part[:1])])
        lse_part = torch.cat([lse_part, sinks[own_heads(d, rank)].expand_as(lse_part[:1])])
    problem = MergeStatesDescriptor(
        num_states=len(o_part), total_num_rows=d.total_num_rows, num_heads=d.kept_heads, head_dim=d.head_dim, dtype=d.dtype
    )
    kept = (d.total_num_rows, d.kept_heads)
    o, lse = torch.zeros(*kept, d.head_dim, dtype=KINDS[d.dtype]), torch.zeros(kept)
    emulator.subject(problem).run(problem.args_type(states_o=o_part, states_lse=lse_part, o=o, lse=lse))
    return o, lse


CASES = {
    "heads": {},
    "all heads": {"scatter": "none"},
    "latent": {"head_dim": 512, "num_heads": 4},
    "three": {"world": 3, "states": 3, "dtype": "f32"},
    "one unit": {"total_num_rows": 1, "num_heads": 2},
    "sinks": {"sinks": True, "total_num_rows": 37},
    "sinks of three states": {"sinks": True, "world": 3, "dtype": "f32"},
    "seven": {"world": 7, "num_heads": 14, "total_num_rows": 3},
    "sinks of all heads": {"sinks": True, "scatter": "none", "states": 2, "dtype": "f32", "head_dim": 72},
    "sinks of 33 states": {"sinks": True, "world": 4, "states": 8, "num_heads": 4},
}


@pytest.mark.parametrize("flagged", WAYS)
@pytest.mark.parametrize("case", CASES)
def test_every_rank_has_the_bits_of_one_gpu(case, flagged, monkeypatch):
    monkeypatch.setattr(merge_across, "MOST_CTAS", 3)
    d = descriptor(**CASES[case])
    found = on_peers(d.world, 1 << 14, lambda group: run(d, group, *states(d, group.rank)), flagged=flagged)
    for rank, (o, lse) in enumerate(found):
        want_o, want_lse = by_hand(d, rank)
        assert torch.allclose(o.double(), want_o, rtol=0.01, atol=0.01)
        assert torch.allclose(lse.double(), want_lse, rtol=1e-4, atol=1e-4)
        o_alone, lse_alone = of_one_gpu(d, rank)
        assert torch.equal(o, o_alone)
        assert torch.equal(lse, lse_alone)


def test_states_that_exceed_shared_memory_are_kept_in_global_memory(monkeypatch):
    d, words = descriptor(total_num_rows=3), []
    monkeypatch.setattr(merge_across, "MOST_HELD", 200)

    def call(group):
        module = MODULES.of(group.rank, merge_across.jit_spec(d, TARGET))
        real = module.run
        monkeypatch.setattr(module, "run", lambda *given: (words.append(given[-3:]), real(*given)))
        return run(d, group, *states(d, group.rank))

    for rank, (o, _) in enumerate(on_peers(2, 1 << 14, call, flagged=1 << 18)):
        assert torch.allclose(o.double(), by_hand(d, rank)[0], rtol=0.01, atol=0.01)
    assert words == [(0, 9, 0)] * 2  # (format without flags, number of CTAs, bytes of states in shared memory)


@pytest.mark.parametrize("flagged", WAYS)
def test_consecutive_calls_give_right_results_across_the_wrap_of_the_round_number(flagged):
    """Calls of both formats alternate; rows that do not fit in one launch take further launches."""
    d, small = descriptor(), descriptor(total_num_rows=1)

    def calls(group):
        group.link.start_at(2**32 - 4)
        found = [run(one, group, *states(one, group.rank)) for one in (d, small) * 4]
        return found, group.link.launches

    for rank, (found, launches) in enumerate(on_peers(2, 1008, calls, flagged=flagged and 4096)):
        assert launches > 8
        for (o, _), one in zip(found, (d, small) * 4, strict=True):
            assert torch.allclose(o.double(), by_hand(one, rank)[0], rtol=0.01, atol=0.01)


@pytest.mark.parametrize("flagged", WAYS)
def test_statistics_count_bytes_waiting_time_and_the_last_rank(flagged):
    d, started = descriptor(world=3), threading.Barrier(3)

    def calls(group):
        MODULES.of(group.rank, merge_across.jit_spec(d, TARGET))  # build the module before the ranks start to wait
        given = states(d, group.rank)
        started.wait(60)
        if group.rank == 2:
            time.sleep(0.5)
        run(d, group, *given)
        return group.link.counters

    sizes = d.total_num_rows * d.kept_heads * (d.head_dim * 2 + 4)
    for rank, (sent, waited, last) in enumerate(on_peers(3, 1 << 14, calls, flagged=flagged)):
        assert sent == 2 * sizes
        # emulated threads wait one after the other; with flags, the first thread waits for lines here
        if rank < 2 and not flagged:
            assert waited[2] > 1e8 > 5e7 > waited[rank] == 0
            assert last == [0, 0, 1]


@pytest.mark.parametrize("world", [2, 3])
@pytest.mark.parametrize("flagged", WAYS)
def test_flags_of_a_round_with_the_same_number_are_not_taken_as_arrivals(flagged, world):
    """Two calls with the same flags and half, 2 * (2^32 - 1) rounds apart, and a call at 2^32; one rank is late for both."""
    d, starts = descriptor(world=world), (10, 10 + 2 * (2**32 - 1), 2**32 - 1)

    def calls(group):
        found = []
        for number, start in enumerate(starts):
            group.link.start_at(start)
            if group.rank == 1 and number > 0:
                time.sleep(0.3)
            found.append(run(d, group, *states(d, group.rank + world * number)))
        return found

    for rank, made in enumerate(on_peers(world, 1 << 14, calls, flagged=flagged)):
        for number, (o, _) in enumerate(made):
            want, _ = by_hand(d, rank, [states(d, r + world * number) for r in range(world)])
            assert torch.allclose(o.double(), want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("flagged", WAYS)
@pytest.mark.parametrize(("act", "told"), [("stays away", (0b10, 0)), ("other plan", (0, 0b10))])
def test_an_error_names_a_rank_that_is_missing_or_has_another_plan(act, told, flagged):
    d = descriptor()

    def call(group):
        if group.rank == 1 and act == "stays away":
            return None
        found = []
        for first in (True, False):  # only the first call differs; the second would be valid by itself
            group.link.digest = 8 if group.rank == 1 and first and act == "other plan" else 7
            found.append(run(d, group, *states(d, group.rank)))
        return found, group.link.failed

    found, failed = on_peers(2, 1 << 14, call, patience_s=0.5, flagged=flagged)[0]
    assert failed == told
    for o, lse in found:
        assert o.isnan().all()
        assert lse.isnan().all()


def test_unsupported_problems_are_declined():
    assert not list(merge_across.declines(descriptor(), TARGET))
    for fields in ({"world": 9, "num_heads": 9}, {"exchange_dtype": "f32"}, {"head_dim": 68}):
        assert list(merge_across.declines(descriptor(**fields), TARGET)), fields
