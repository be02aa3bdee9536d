"""Four products in one statement are the four that one statement each makes."""

import pytest

from opfacade import jit
from opfacade.jit import JitSpec, sass_opcodes, sass_words

from ..jit.conftest import cache_dir, root, scale_cache  # noqa: F401  fixtures

SOURCE = """
#include "kernels/common/wgmma_steps.cuh"
using namespace opfacade;
extern "C" __global__ void __launch_bounds__(128) tiny(float* out, uint64_t q, uint64_t k, int add) {
  float s[32], o[128];
  for (int i = 0; i < 32; ++i) s[i] = out[i];
  for (int i = 0; i < 128; ++i) o[i] = out[i + 32];
  const uint64_t a[4] = {q, q + 2, q + 4, q + 6}, b[4] = {k, k + 128, k + 256, k + 384};
  wgmma_fence();
%s
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
  pin(o);
  for (int i = 0; i < 32; ++i) out[i] = s[i];
  for (int i = 0; i < 128; ++i) out[i + 32] = o[i];
}
"""
ALONE = """
  for (int i = 0; i < 4; ++i) Wgmma<{T}, 64>::ss(s, a[i], b[i], i > 0 || add);
  for (int i = 0; i < 4; ++i) Wgmma<{T}, 256>::st(o, a[i], b[i]);
"""
TOGETHER = """
  WgmmaSteps<{T}, 64>::ss(s, a, b, add);
  WgmmaSteps<{T}, 256>::st(o, a, b);
"""
# Registers by number, and how instructions are scheduled.
NUMBERS = 0xFFFF << 16 | 0xFF << 64 | -1 << 105


def products(place, text):
    (place / "csrc/testing/tiny.cu.jinja").write_text(SOURCE % text)
    cubin = jit.build(JitSpec.of("tiny", "testing/tiny", "sm_90a", value=42)).parent / "kernel.cubin"
    (words,) = sass_words.functions(cubin.read_bytes()).values()
    return [word & ~NUMBERS for word in words if sass_opcodes.opcode(word) == sass_opcodes.HGMMA]


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_steps_are_the_same_products(root, cache_dir, dtype):  # noqa: F811
    alone = products(root, ALONE.replace("{T}", dtype))
    jit.forget()
    assert len(alone) == 8
    assert products(root, TOGETHER.replace("{T}", dtype)) == alone
