"""Each rule of index tensors at its edge: the last valid value and the first invalid one; guards, captures, forks."""

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from opfacade import jit
from opfacade.backends.cuda.collective import sum_fold
from opfacade.base.capture import capturing
from opfacade.core.request_tables import RequestTables
from opfacade.errors import IndexDataError, OpfacadeError, PlanStateError
from opfacade.testing.inputs import make_args
from opfacade.testing.matrix import matrix
from opfacade.validation import Guards, capture_and_fork, device, device_values, full, values
from opfacade.validation.host import findings, used_keys
from opfacade.validation.rules import (
    ALL_PAGES,
    FALLS,
    LAST_PAGE,
    LENGTH,
    LENS,
    NEW_ROWS,
    PAGE,
    PAGES,
    RANGE,
    ROWS,
    START,
    STARTS,
    TOO_LONG,
    Finding,
    error_of,
)
from opfacade.validation.values import Bounded
from tests.support.problems import append, decode

# Two requests: 3 and 2 pages of 4 tokens, 10 and 5 tokens, of which 2 and 1 are new; the pool has 8 pages.
CSR = RequestTables(
    op="append", requests=2, rows="rows", starts="starts", lens="lens", pages="pages", total_rows=4, page_tokens=4, num_pages=8,
    limit=6, max_len=11, appends=True,
)  # fmt: skip
BLOCK = RequestTables(
    op="decode", requests=2, lens="lens", pages="pages", page_tokens=4, num_pages=8, limit=5, max_len=11, block=True
)


def csr(**changes):
    return {"rows": [0, 2, 3], "starts": [0, 3, 5], "lens": [2, 1], "pages": [7, 0, 3, 2, 5, 9, 9]} | changes


def block(**changes):
    return {"lens": [10, 5], "pages": [[7, 0, 3], [2, 5, -9]]} | changes


def found(tables, operands):
    args = SimpleNamespace(**{name: torch.tensor(value, dtype=torch.int32) for name, value in operands.items()})
    return findings(tables, args)


def test_sound_tables_have_no_finding():
    assert found(CSR, csr()) == []
    assert found(BLOCK, block()) == []


WRONG = {
    "rows begin at 1": (CSR, csr(rows=[1, 2, 3]), [Finding(START, ROWS, 0, 0, 1, 0)]),
    "rows below 0": (CSR, csr(rows=[0, -1, 3]), [Finding(RANGE, ROWS, 0, 1, -1, 4), Finding(RANGE, ROWS, 1, 1, -1, 4)]),
    "one row too many": (CSR, csr(rows=[0, 2, 5]), [Finding(RANGE, ROWS, 1, 2, 5, 4)]),
    "rows fall": (CSR, csr(rows=[0, 2, 1]), [Finding(FALLS, ROWS, 1, 2, 1, 2)]),
    "starts begin at 1": (CSR, csr(starts=[1, 3, 5]), [Finding(START, STARTS, 0, 0, 1, 0)]),
    "starts fall": (CSR, csr(starts=[0, 3, 2]), [Finding(FALLS, STARTS, 1, 2, 2, 3)]),
    "starts past the bound": (CSR, csr(starts=[0, 3, 7]), [Finding(RANGE, STARTS, 1, 2, 7, 6)]),
    "starts past the pages": (CSR, csr(starts=[0, 3, 5], pages=[7, 0, 3, 2]), [Finding(RANGE, STARTS, 1, 2, 5, 4)]),
    "an empty last page": (CSR, csr(lens=[0, 1]), [Finding(LAST_PAGE, LENS, 0, 0, 0, 4)]),
    "a last page too full": (CSR, csr(lens=[2, 5]), [Finding(LAST_PAGE, LENS, 1, 1, 5, 4)]),
    "a request too long": (CSR, csr(lens=[4, 1]), [Finding(TOO_LONG, STARTS, 0, 1, 12, 11)]),
    "more new rows than tokens": (
        CSR,
        csr(rows=[0, 0, 4], starts=[0, 3, 4], lens=[2, 3]),
        [Finding(NEW_ROWS, ROWS, 1, 2, 4, 3)],
    ),
    "a page past the pool": (CSR, csr(pages=[7, 0, 8, 2, 5, 9, 9]), [Finding(PAGE, PAGES, 0, 2, 8, 8)]),
    "a page below 0": (CSR, csr(pages=[7, 0, 3, 2, -1, 9, 9]), [Finding(PAGE, PAGES, 1, 4, -1, 8)]),
    "both requests": (
        CSR,
        csr(pages=[7, 0, 99, 2, 98, 9, 9]),
        [Finding(PAGE, PAGES, 0, 2, 99, 8), Finding(PAGE, PAGES, 1, 4, 98, 8)],
    ),
    "a length below 0": (BLOCK, block(lens=[10, -1]), [Finding(LENGTH, LENS, 1, 1, -1, 11)]),
    "a length past its bound": (BLOCK, block(lens=[12, 5]), [Finding(LENGTH, LENS, 0, 0, 12, 11)]),
    "pages of all requests": (BLOCK, block(lens=[10, 9], pages=[[7, 0, 3], [2, 5, 1]]), [Finding(ALL_PAGES, LENS, 1, 1, 6, 5)]),
    "the last page of a row": (BLOCK, block(pages=[[7, 0, 8], [2, 5, -9]]), [Finding(PAGE, PAGES, 0, 2, 8, 8)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_entry_is_found_with_its_numbers(name):
    tables, operands, wanted = WRONG[name]
    assert found(tables, operands) == wanted


@pytest.mark.parametrize(("place", "name"), [(ROWS, "rows"), (STARTS, "starts"), (LENS, "lens"), (PAGES, "pages")])
def test_an_error_names_the_operand_the_request_and_every_finding(place, name):
    error = error_of(CSR, [Finding(RANGE, place, 1, 2, 9, 4), Finding(RANGE, ROWS, 0, 1, -1, 4)])
    assert (error.argument, error.request, error.position, error.value) == (name, 1, 2, 9)
    assert [issue.argument for issue in error.issues] == [f"{name}[2]", "rows[1]"]
    assert "a value in [0, 4]" in str(error)


RIGHT = {
    "every row": (CSR, csr(rows=[0, 2, 4])),
    "a last page that is full": (CSR, csr(lens=[3, 4])),
    "as many new rows as tokens": (CSR, csr(rows=[0, 0, 4], starts=[0, 3, 4], lens=[2, 4])),
    "the last page of the pool": (CSR, csr(pages=[7, 0, 7, 2, 5, 9, 9])),
    "pages in front of the new rows": (CSR, csr(pages=[99, -5, 3, 2, 5, 9, 9])),
    "an empty request": (CSR, csr(rows=[0, 2, 2], starts=[0, 3, 3], lens=[2, 77])),
    "the longest": (BLOCK, block(lens=[11, 5])),
    "entries past a length": (BLOCK, block(lens=[10, 4], pages=[[7, 0, 3], [2, 99, -9]])),
}


@pytest.mark.parametrize("name", RIGHT)
def test_the_last_right_value_is_right(name):
    assert found(*RIGHT[name]) == []


@pytest.mark.parametrize(
    ("window", "rows", "wanted"),
    [(-1, 2, (0, 10)), (3, 2, (5, 10)), (0, 2, (8, 10)), (9, 2, (0, 10)), (3, 0, (10, 10)), (3, 1, (6, 10))],
)
def test_the_keys_in_use_are_those_that_some_row_sees(window, rows, wanted):
    """There are 10 keys; the first of the rows is at 10 - rows, and sees `window` keys before itself."""
    tables = RequestTables(op="prefill", requests=1, limit=9, max_len=99, window=window)
    assert used_keys(tables, 10, rows) == range(*wanted)


def test_a_page_that_stands_twice_in_a_request_is_refused_where_it_is_appended_to():
    descriptor, args = append([2, 3], [9, 6])
    tables = descriptor.request_tables()
    guard = full.FullGuard(descriptor)
    guard._judge(args)
    first, stop = args.kv_indptr[:2].tolist()
    assert stop - first > 1
    args.kv_indices[first] = args.kv_indices[stop - 1]
    with pytest.raises(IndexDataError, match="OPF-V002") as caught:
        guard._judge(args)
    assert (caught.value.argument, caught.value.request) == (tables.pages, 0)


def test_level_full_refuses_what_the_family_refuses_before_anything_runs():
    """A packed mask that lacks a bit for some pair of row and key."""
    descriptor = matrix()["ragged-fixed-mask"]
    args, launched = make_args(descriptor, seed=1), []
    guarded = full.FullGuard(descriptor).wrap(lambda args, workspace: launched.append(1))
    guarded(args, None)
    args.mask_indptr[-1] -= 1
    with pytest.raises(OpfacadeError, match="mask"):
        guarded(args, None)
    assert launched == [1]


# -- guards ----------------------------------------------------------------------------------------------------------


class Noted:
    """A guard that records each query and each launch."""

    def __init__(self, name, told):
        self.name, self.told = name, told

    def wrap(self, launch):
        def guarded(args, workspace):
            self.told.append(f"launch {self.name}")
            launch(args, workspace)

        return guarded

    def check(self):
        self.told.append(f"check {self.name}")


def test_every_guard_is_asked_and_stands_before_the_launch_in_order():
    told = []
    guards = Guards([Noted("a", told), Noted("b", told)])
    guards.check()
    guards.wrap(lambda args, workspace: told.append("launch"))(None, None)
    assert told == ["check a", "check b", "launch a", "launch b", "launch"]


def test_every_bounded_operand_is_looked_at_and_its_first_wrong_value_told():
    bounded = (Bounded("a", 0, 4, "", False), Bounded("b", 1, 3, "", False))
    args = SimpleNamespace(a=torch.tensor([[0, 3], [9, 8]]), b=torch.tensor([1, 2, 0, 7]))
    assert [(f.bounded.name, f.position, f.value) for f in values.findings(bounded, args)] == [("a", 2, 9), ("b", 2, 0)]


def channel():
    """A channel on the host, whose records are written like by a device."""
    made = object.__new__(device.Channel)
    made.memory = torch.zeros(ctypes.sizeof(device.Ring), dtype=torch.uint8)
    made.ring = device.Ring.from_address(made.memory.data_ptr())
    made.captured, made._lock = False, device.ForkLock()
    return made


def test_all_findings_come_once_in_the_order_of_calls_and_requests():
    made = channel()
    for sequence, (call, request) in enumerate([(1, 0), (0, 5), (0, 2)], 1):
        made.ring.records[sequence - 1] = device.Record(sequence, PAGE, PAGES, request, 9, 0, 8, call)
    assert made.pending()
    assert [(f.call, f.request) for f in made.drain()] == [(0, 2), (0, 5), (1, 0)]
    assert not made.pending()
    assert made.drain() == []


def test_a_channel_that_serves_again_is_as_new(monkeypatch):
    told = []
    spare = SimpleNamespace(reset=lambda: told.append("reset"))
    monkeypatch.setattr(device, "_spare", {3: [spare]})
    assert device._take(3) is spare
    assert told == ["reset"]
    assert device._spare == {3: []}


@pytest.fixture
def gpu_3(monkeypatch):
    """Device 3 is the current one; the devices on which a module is loaded."""
    prepared = []
    monkeypatch.setattr(jit, "load", lambda spec, **_: SimpleNamespace(run=None, prepare=prepared.append))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(device, "_take", lambda index: SimpleNamespace(device=index))
    monkeypatch.setattr(device, "_give_back", lambda known: None)
    return prepared


def test_a_kernel_of_a_check_or_of_ranks_is_loaded_where_it_will_run_before_a_capture(gpu_3):
    sku = SimpleNamespace(arch="sm_90a")
    device.DeviceGuard(CSR, sku, True).wrap(None)
    device_values.DeviceValueGuard("op", (Bounded("a", 0, 4, "", False),), sku, True).wrap(None)
    sum_fold.module_of(jit.JitSpec.of("sum_fold", "ranks/sum_fold", "sm_90a"), True, "")
    assert gpu_3 == [3, 3, 3]


@pytest.mark.parametrize("value", [5, -5, 2**31, -(2**31) - 1, 2**40 + 3, -(2**40) - 3])
def test_a_value_of_64_bits_comes_back_from_the_device_with_its_sign(value):
    bounded = (Bounded("a", 0, 4, "", False), Bounded("b", 0, 4, "", False))
    guard = device_values.DeviceValueGuard("op", bounded, SimpleNamespace(arch="sm_90a"), True)
    record = Finding(11, 1, 0, 6, ctypes.c_int32(value & 0xFFFFFFFF).value, value >> 32, 7)
    outside = guard._outside(record)
    assert (outside.bounded.name, outside.position, outside.value, outside.call) == ("b", 6, value, 3)
    error = values.error_of("op", [outside])
    assert (error.asynchronous, error.call_id) == (True, 3)
    assert (values.error_of("op", [values.Outside(bounded[0], 0, 9)], None).asynchronous) is False


# -- moments ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def capture(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


def test_a_capture_is_seen_where_cuda_is_in_use(capture, monkeypatch):
    assert capture_and_fork.capturing()
    with pytest.raises(PlanStateError, match="OPF-R003"):
        capture_and_fork.refuse_capture("op", "it is too early")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert not capture_and_fork.capturing()


def test_a_capture_is_looked_for_on_the_device_of_the_tensors(capture, monkeypatch):
    here = [0]

    @contextmanager
    def device(which):
        here.append(which.index)
        yield
        here.pop()

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: here[-1] == 1)
    assert [capturing(torch.device(name)) for name in ("cuda:0", "cuda:1", "cuda", "cpu")] == [False, True, False, False]
    assert not capturing()
    with pytest.raises(PlanStateError, match="OPF-R003"):
        capture_and_fork.refuse_capture("op", "it is too early", torch.device("cuda:1"))
    capture_and_fork.refuse_capture("op", "it is too early")


@pytest.mark.usefixtures("capture")
def test_level_full_reads_nothing_during_a_capture(monkeypatch):
    monkeypatch.setattr(full, "device_of", lambda args: torch.device("cuda"))
    descriptor, args = decode([3])
    launched = []
    guarded = full.FullGuard(descriptor).wrap(lambda args, workspace: launched.append(1))
    with pytest.raises(PlanStateError, match="OPF-R004"):
        guarded(args, None)
    assert launched == []


def test_cuda_after_a_fork_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: False)  # this process may be a forked child itself
    capture_and_fork.refuse_fork("op")
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    with pytest.raises(PlanStateError, match="OPF-R002"):
        capture_and_fork.refuse_fork("op")
