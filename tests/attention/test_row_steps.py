"""Where rows lie that threads copy, in steps of which 32 bits hold enough: what a binding says and a kernel reckons with."""

import ctypes

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.host import library

HOST = r"""
#include "kernels/attention/prefill_wgmma_params.h"
using namespace opfacade;
extern "C" void steps(long long page_stride, long long token_stride, long long pages, long long tokens, uint32_t* out) {
  const RowSteps found = row_steps({nullptr, page_stride, token_stride, 0}, pages, tokens);
  out[0] = found.page, out[1] = found.token, out[2] = found.bytes;
}
"""
GIB = 1 << 30


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    host = library(tmp_path_factory.mktemp("row_steps"), HOST)
    host.steps.argtypes = [*[ctypes.c_longlong] * 4, ctypes.POINTER(ctypes.c_uint32)]

    def found(*facts):
        out = (ctypes.c_uint32 * 3)()
        host.steps(*facts, out)
        return tuple(out)

    return found


# As bindings give them: whole 16 bytes, and zero along what has one place alone.
strides = st.integers(1, GIB).map(lambda n: 16 * n)
pools = st.tuples(strides, strides, st.integers(1, 1 << 22), st.integers(1, 256)).map(
    lambda p: (p[0] if p[2] > 1 else 0, p[1] if p[3] > 1 else 0, p[2], p[3])
)


@given(pool=pools)
@example(pool=(2048, 0, 1 << 22, 1))
@example(pool=(0, 0, 1, 1))
@example(pool=(16, 0, (1 << 32) + 1, 1))
@example(pool=(16, 0, 1 << 32, 1))
def test_the_last_row_is_found_or_the_pool_refused(steps, pool):
    page_stride, token_stride, pages, tokens = pool
    page, token, step = steps(*pool)
    last = (pages - 1) * page_stride + (tokens - 1) * token_stride
    if step == 0:
        assert last >= 64 * GIB
        return
    whole = (page * (pages - 1) + token * (tokens - 1)) % 2**32  # as the kernel reckons
    assert whole * step == last
    assert step >= 16


@pytest.mark.parametrize(
    ("pool", "step"),
    [((2048, 0, 1 << 26, 1), 2048), ((4096 + 16, 256, 1 << 10, 16), 16), ((1 << 20, 0, 1 << 17, 1), 1 << 16)],
    ids=["heads side by side, 128 GiB", "padded", "pages among those of other layers"],
)
def test_steps_are_as_large_as_they_can_be(steps, pool, step):
    assert steps(*pool)[2] == step


def test_rows_too_far_apart_go_through_elements(steps):
    assert steps(64 * GIB + 16, 0, 2, 1) == (0, 0, 0)
    assert steps(64 * GIB, 0, 2, 1)[2] == 1 << 16
