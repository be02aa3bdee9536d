"""The number of times that the kernel searches for a new base, which the results do not show. The test compiles the prefill's
own code with a header that counts."""

import ctypes
from unittest.mock import patch

import pytest

from opfacade.plans.attention import BatchPagedPrefillDescriptor, PagedKvCacheDescriptor
from opfacade.testing import inputs
from tests import emulator

pytestmark = emulator.needed

HEADERS = {"bf16": "kernels/attention/lazy_softmax.cuh", "f8_e4m3": "kernels/attention/lazy_softmax_fp8.cuh"}
# Both headers define `update_base`, with different arguments.
COUNTS = """#pragma once
#define update_base update_base_uncounted
#include "{header}"
#undef update_base
extern "C" __attribute__((visibility("default"))) int follows[32] = {{}};
namespace opfacade {{
template <class C, class Base, class Exponent, class... Line>
auto update_base(Base& base, const float (&s)[C::kTileKv / 2], const Exponent& exponent, const bool (&has)[2],
                 float (&factor)[2], const Line&... line) {{
  if (threadIdx.x % 32 == 0) ++follows[threadIdx.x / 32];
  return update_base_uncounted<C>(base, s, exponent, has, factor, line...);
}}
}}  // namespace opfacade
"""
ROWS, TILES = 32, 13


@pytest.fixture
def counted(monkeypatch, dtype):
    """The number of searches for a base by each warp."""
    monkeypatch.setattr("opfacade.backends.cuda.ptxas.release", lambda *_: None)
    header = HEADERS[dtype]
    with emulator.instead_of(header, COUNTS.format(header=emulator.ROOT / header)):
        built = []
        with patch.object(emulator, "library_of", lambda spec: built.append(emulator.whole(spec)) or built[-1]):
            yield lambda: list((ctypes.c_int * 32).in_dll(ctypes.CDLL(str(built[-1])), "follows"))


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3"])
def test_a_row_with_a_low_first_score_changes_its_base_once(counted, dtype):
    """The first row attends to one key of its first tile, and nearly all other keys have larger weights: about 2^3.5 times as
    large, at most 2^8. If the base did not change, each tile would be computed twice."""
    kv = (TILES - 1) * 128 + ROWS
    whole = {"q_dtype": dtype, "o_dtype": "bf16"} if dtype != "bf16" else {}
    head_dim = 128 if dtype != "bf16" else 64
    cache = PagedKvCacheDescriptor(
        num_total_pages=kv // 16, page_size=16, num_kv_heads=1, head_dim=head_dim, dtype=dtype, layout="NHD"
    )
    descriptor = BatchPagedPrefillDescriptor(
        batch_size=1, total_num_rows=ROWS, num_qo_heads=4, causal=True, paged_kv=cache, kv_split="off", **whole
    )
    subject = emulator.subject(descriptor)
    args = subject.args(2, inputs.DrawnLengths(q=[ROWS], kv=[kv]))
    page, slot = divmod(kv - ROWS, 16)
    low = args.q[0].float().sum(0) * -0.3
    args.k_data[int(args.kv_indices[page]), slot, 0] = low.to(args.k_data.dtype)
    subject.run(args)
    counts = counted()
    assert sum(counts) >= 8, "each of eight warps looks once at least"
    assert max(counts) <= TILES // 2
