"""The device guard, with the host in the role of the device: its launches, reads and errors, and safe tables.

The rules are compiled for a warp of one lane; stubs replace the operators and, like kernels, trust their tables.
"""

import ctypes
import threading

import pytest
import torch

from opfacade import Target, jit
from opfacade.backends.reference.attention.softmax import Scoring, attend
from opfacade.backends.reference.page_table import by_token, token_index
from opfacade.core.request_tables import NOWHERE
from opfacade.errors import IndexDataError
from opfacade.select.registry import candidates_for
from opfacade.validation import device
from opfacade.validation.rules import tables_of
from tests.support.gpu_corruptions import Checker
from tests.support.index_corruption import CACHE, PROBLEMS
from tests.validation.test_rules import CSafe, CTables, judge_all, ranges  # noqa: F401

H100 = Target.parse("sm_90a")


class HostChannel(device.Channel):
    def __init__(self, index):
        self.device = index
        self.memory = torch.zeros(ctypes.sizeof(device.Ring), dtype=torch.uint8)
        self.state = torch.zeros(3, dtype=torch.int32)
        self.ring = device.Ring.from_address(self.memory.data_ptr())
        self.captured = False
        self._lock = threading.Lock()

    def reset(self):
        self.state.zero_(), self.memory.zero_()


class HostModule:
    """The binding's `run`, on the host."""

    def __init__(self, judge):
        self.judge = judge

    def run(self, *given):
        tables, safe = given[:4], given[4:8]
        state, address, batch, total, window, limit, pages, size, longest, appends = given[8:]
        width = tables[3].shape[1] if tables[3] is not None and tables[3].dim() == 2 else 0
        c_tables = CTables(*map(pointer, tables), width, width, limit, pages, size, total, window, batch, longest, appends)
        records = (device.Record * batch)()
        count = self.judge(ctypes.byref(c_tables), ctypes.byref(CSafe(*map(pointer, safe))), records)
        ring = device.Ring.from_address(address)
        for record in records[:count]:
            claimed = int(state[0])
            if claimed - ring.consumed >= device.RECORDS:
                continue
            record.sequence, record.call = claimed + 1, int(state[1])
            ring.records[claimed % device.RECORDS] = record
            state[0] += 1
        state[1] += 1


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def trusting(descriptor, tables):
    """An operator that trusts its tables."""

    def launch(args, workspace):
        given = [getattr(args, name) if name else None for name in tables.names]
        rows = given[0] if given[0] is not None else torch.arange(tables.requests + 1)
        for r, (mine, pages, length) in enumerate(ranges(tables, rows, given[1:])):
            if tables.appends:
                append(descriptor, args, mine, torch.tensor(pages), length)
            else:
                attention(descriptor, args, slice(*mine), torch.tensor(pages), length)
            assert r < tables.requests

    return launch


def append(descriptor, args, mine, pages, length):
    first = length - (mine[1] - mine[0])
    for i in range(*mine):
        position = first + i - mine[0]
        if position >= 0:
            at = token_index(descriptor.paged_kv, pages, position, position + 1)
            for pool, new in ((args.k_data, args.k_new), (args.v_data, args.v_new)) if int(at[0]) != NOWHERE else ():
                by_token(pool, descriptor.paged_kv)[at] = new[i]


def attention(descriptor, args, rows, pages, length):
    scoring = Scoring(descriptor.scale, 0.0, getattr(descriptor, "causal", False), -1)
    if isinstance(length, tuple):
        k, v = args.k[slice(*length)], args.v[slice(*length)]
    else:
        at = token_index(descriptor.paged_kv, pages, 0, length)
        k, v = (by_token(pool, descriptor.paged_kv)[at] for pool in (args.k_data, args.v_data))
    attend(args.q[rows], k, v, scoring, args.o[rows], args.lse[rows])


class HostPlan:
    """The part of a plan that the checker needs."""

    def __init__(self, descriptor):
        self.descriptor, tables = descriptor, tables_of(descriptor)
        sku = next(c for c in candidates_for(type(descriptor)) if c.backend == "cuda").sku(descriptor, H100)
        self.guard = device.DeviceGuard(tables, sku, True)
        self.launch = self.guard.wrap(trusting(descriptor, tables))
        self.check = self.guard.check

    def run(self, args):
        self.launch(args, None)


@pytest.fixture(autouse=True)
def _host(monkeypatch, judge_all):  # noqa: F811
    monkeypatch.setattr(device, "Channel", HostChannel)
    monkeypatch.setattr(device, "_spare", {})
    monkeypatch.setattr(jit, "load", lambda spec, **_: HostModule(judge_all))


@pytest.mark.parametrize("count", [160, pytest.param(4000, marks=[pytest.mark.heavy, pytest.mark.timeout(1500)])])
def test_random_corruptions_are_reported_and_spare_the_neighbours(count):
    checker = Checker([HostPlan(d) for d in PROBLEMS], "cpu")
    for seed in range(count):
        try:
            checker.one(seed)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert checker.silent == 0
    assert checker.wrong > count // 2


@pytest.mark.parametrize("page_table", ["csr", "block"])
def test_a_page_that_stores_nothing_is_no_error_of_an_append(page_table):
    """The other new rows of its request are stored. In attention, such a page is outside the pool."""
    from opfacade.testing import inputs

    for op in ("paged_kv_append", "paged_decode"):
        descriptor = next(d for d in PROBLEMS if (d.op, getattr(d, "page_table", "")) == (op, page_table))
        rows = {"q": [6, 1, 0, 3, 2, 1]} if op == "paged_kv_append" else {}
        args = inputs.make_args(descriptor, seed=2, lengths=inputs.DrawnLengths(kv=[7, 3, 5, 9, 2, 1], **rows))
        pages = args.kv_indices if page_table == "csr" else args.block_table[0]
        first, pages[1] = int(pages[0]), NOWHERE
        plan, before = HostPlan(descriptor), args.k_data.clone()
        plan.run(args)
        if op == "paged_decode":
            with pytest.raises(IndexDataError, match=str(NOWHERE)):
                plan.check()
            continue
        plan.check()
        written = by_token(args.k_data.view(torch.int16) != before.view(torch.int16), CACHE).flatten(2).any(2)
        assert written[first].tolist() == [False, True, True, True]
        assert int(written.sum()) == 3 + 1 + 3 + 2 + 1


def test_findings_carry_the_number_of_the_call_and_are_told_once():
    from opfacade.testing import inputs

    args = inputs.make_args(PROBLEMS[0], seed=2)
    plan = HostPlan(PROBLEMS[0])
    page = int(args.kv_indices[0])
    for value in (page, -1):
        args.kv_indices[0] = value
        plan.run(args)
    with pytest.raises(IndexDataError) as caught:
        plan.run(args)
    error = caught.value
    assert (error.argument, error.position, error.value, error.call_id, error.asynchronous) == ("kv_indices", 0, -1, 1, True)
    plan.check()


def test_a_host_that_falls_behind_keeps_the_first_findings():
    from opfacade.testing import inputs

    args = inputs.make_args(PROBLEMS[1], seed=2)
    plan = HostPlan(PROBLEMS[1])
    args.kv_lens.fill_(-1)
    module = jit.load(None)
    for _ in range(30):  # 6 findings each
        plan.guard._judge(module.run, args)
    (channel,) = plan.guard._channels.known.values()
    found = channel.drain()
    assert len(found) == device.RECORDS
    assert [f.call for f in found] == sorted(f.call for f in found)
    plan.guard._judge(module.run, args)
    assert {f.call for f in channel.drain()} == {30}


def test_a_channel_of_a_dead_guard_serves_again_unless_a_graph_holds_it(monkeypatch):
    import gc

    monkeypatch.setattr(HostChannel, "reset", lambda self: None)
    monkeypatch.setattr(device, "_kept", [])
    for captured in (False, True):
        plan = HostPlan(PROBLEMS[0])
        channel = plan.guard._channels.on(None)
        channel.captured = captured
        del plan
        gc.collect()
        assert (channel in device._spare.get(None, []), channel in device._kept) == (not captured, captured)
