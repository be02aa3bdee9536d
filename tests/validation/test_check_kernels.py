"""The two checks on a device, kernel and binding, in the emulator: the records and the copies that they leave, by hand."""

import ctypes

import pytest
import torch
import tvm_ffi

from opfacade.jit import JitSpec
from opfacade.validation import device
from tests import emulator

pytestmark = emulator.needed

COUNTERS = '#pragma once\n#include "tests/emulator/counters.h"'
PAGE, LAST_PAGE, OUTSIDE = 5, 4, 11  # rules
LENS, PAGES = 2, 3  # tables


class Check:
    """A check with its ring and its counters."""

    def __init__(self, name, *edits):
        with emulator.edited(f"kernels/validation/{name}.cuh", ("#pragma once", COUNTERS), *edits):
            spec = JitSpec.of(name, f"validation/{name}", "sm_90a")
            self._module = tvm_ffi.load_module(str(emulator.build(spec, made=emulator.builds.whole)))
        self.ring, self.state = device.Ring(), torch.zeros(3, dtype=torch.int32)

    def __call__(self, tensors, *rest):
        held = []
        given = [x if x is None else emulator.cuda_view(x, held) for x in (*tensors, self.state)]
        self._module.run(*given, ctypes.addressof(self.ring), *rest)

    def records(self):
        """The records of the ring by sequence: (rule, place, request, value, position, limit, call)."""
        found = [r for r in self.ring.records if r.sequence]
        return {r.sequence: (r.rule, r.place, r.request, r.value, r.position, r.limit, r.call) for r in found}


@pytest.fixture(scope="module")
def values():
    # one block, so that what it shares may be static
    return Check("value_check", ("__shared__ int64_t least", "static int64_t least"))


@pytest.fixture
def check(values):
    values.ring, values.state = device.Ring(), torch.zeros(3, dtype=torch.int32)
    return values


def test_the_first_value_outside_is_reported_and_not_copied(check):
    wide = torch.arange(700, dtype=torch.int16) % 5
    given = wide[::2].view(50, 7).T  # [7, 50], strides 2 and 14
    given[3, 4], given[3, 40], given[5, 1] = 9, -1, 5
    given[6, 0] = 77  # past the valid rows
    safe = torch.full((7, 50), 66, dtype=torch.int16)
    check((given, safe, torch.tensor([6], dtype=torch.int32)), 0, 5, 0, 3)
    # the record has the value once more in the upper 32 bits
    assert check.records() == {1: (OUTSIDE, 3, 0, 9, 3 * 50 + 4, 0, 0)}
    want = given.clone()
    want[3, 4] = want[3, 40] = want[5, 1] = 0
    want[6] = 0
    assert torch.equal(safe, want)
    assert check.state.tolist() == [1, 1, 0]


def test_rows_count_along_their_axis_and_calls_are_numbered(check):
    given = torch.zeros(4, 9, dtype=torch.int64)
    given[2, 3] = 2**40 + 7
    for count in (3, 4, 9, 10):
        check((given, None, torch.tensor([count], dtype=torch.int32)), 0, 5, 1, 1)
    outside = (OUTSIDE, 1, 0, 7, 2 * 9 + 3, 2**8)
    assert check.records() == {1: (*outside, 1), 2: (*outside, 2)}  # 3: past them; 10: a wrong count leaves none
    check((given, None, None), 0, 5, 0, 1)
    assert check.records()[3] == (*outside, 4)
    assert check.state.tolist() == [3, 5, 0]


@pytest.mark.parametrize(
    ("tensors", "rest", "words"),
    [
        ((torch.zeros(3),), (0, 5, 0, 3), "operand expected integers"),
        ((torch.zeros([1] * 7, dtype=torch.int32),), (0, 5, 0, 3), "at most 6 dimensions"),
        ((torch.zeros(3, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)), (0, 5, 0, 3), "as many elements"),
        ((torch.zeros(3, dtype=torch.int32), torch.zeros(3, dtype=torch.int64)), (0, 5, 0, 3), "copy expected int32"),
        ((torch.zeros(3, dtype=torch.int32), None, torch.zeros(1, dtype=torch.int32)), (0, 5, 1, 3), "the axis of rows"),
        ((torch.zeros(3, dtype=torch.int32),), (0, 5, 0, -1), "place set"),
    ],
)
def test_the_binding_refuses_what_does_not_fit(check, tensors, rest, words):
    with pytest.raises((TypeError, ValueError), match=words):
        check((*tensors, None, None)[:3], *rest)


def test_requests_with_wrong_entries_are_reported_and_empty_in_the_copies():
    check = Check("index_check")
    ids = [3, 1, 8, 0, 2, 7, 4, -1]
    given = [torch.tensor(x, dtype=torch.int32) for x in ([0, 2, 3, 3, 5, 6, 8], [4, 1, 0, 5, 1, 2], ids)]
    indptr, lens, pages = (torch.full_like(x, 77) for x in given)
    # of six requests; no rows; 8 pages of 4 tokens and no bound of a length
    rest = (6, 0, -1, 8, 8, 4, 2**31 - 1, False)
    wrong = [(PAGE, PAGES, 1, 8, 2, 8), (LAST_PAGE, LENS, 3, 5, 3, 4), (PAGE, PAGES, 5, -1, 7, 8)]
    for call in range(2):
        check((None, *given, None, indptr, lens, pages), *rest)
        found = [one for sequence, one in check.records().items() if sequence > 3 * call]
        assert sorted(found, key=lambda one: one[2]) == [(*one, call) for one in wrong]
        assert check.state.tolist() == [3 * (call + 1), call + 1, 0]
    assert torch.equal(indptr, given[0])
    assert lens.tolist() == [4, 0, 0, -4, 1, -4]  # with the pages before the last: no key
    assert pages.tolist() == [3, 1, 77, 77, 77, 7, 77, 77]
    for _ in range(20):
        check((None, *given, None, indptr, lens, pages), *rest)
    assert check.state.tolist() == [device.RECORDS, 22, 0]  # nobody has read: what has no place is dropped
    assert max(check.records()) == device.RECORDS
