"""One asm statement with four wgmma instructions compiles to four instructions in order, each with its own operands."""

import pytest

from opfacade import jit
from opfacade.jit import JitSpec
from opfacade.jit.sass import opcodes as sass_opcodes
from opfacade.jit.sass import words as sass_words
from tests.jit.conftest import cache_dir, root, scale_cache  # noqa: F401  fixtures

SOURCE = """
#include "kernels/ptx/wgmma.cuh"
using namespace opfacade;
#define ONE(N, R, A, B, P, TRANSPOSED, d, a, b, add)  \\
  asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.{t}.{t} "  \\
               "{" OPF_LIST_##R "}, " A ", " B ", p, 1, 1, 0, " TRANSPOSED ";}"  \\
               : OPF_OPERANDS_##R(d, 0) : "l"(a), "l"(b), "r"(int(add)) : "memory")
__device__ uint64_t step(const Descriptors& d, int i) { return uint64_t(d.high) << 32 | uint32_t(d.low + i * d.step); }
extern "C" __global__ void __launch_bounds__(128) tiny(float* out, uint64_t q, uint64_t k, int add) {
  float s[32], o[128];
  for (int i = 0; i < 32; ++i) s[i] = out[i];
  for (int i = 0; i < 128; ++i) o[i] = out[i + 32];
  const Descriptors a({uint32_t(q), uint32_t(q >> 32)}, 32), b({uint32_t(k), uint32_t(k >> 32)}, 2048);
  wgmma_fence();
{products}
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
  pin(o);
  for (int i = 0; i < 32; ++i) out[i] = s[i];
  for (int i = 0; i < 128; ++i) out[i + 32] = o[i];
}
"""
ALONE = """
  for (int i = 0; i < 4; ++i) ONE(64, 32, "%32", "%33", "%34", "0", s, step(a, i), step(b, i), i > 0 || add);
  for (int i = 0; i < 4; ++i) ONE(256, 128, "%128", "%129", "%130", "1", o, step(a, i), step(b, i), 1);
"""
TOGETHER = """
  Wgmma<{T}, 64>::ss(s, a, b, add);
  Wgmma<{T}, 256>::st(o, a, b);
"""
# Bit masks that remove register numbers and the fields that encode the order of instructions.
NUMBERS = 0xFFFF << 16 | 0xFF << 64 | -1 << 105


def products(place, dtype, text):
    source = SOURCE.replace("{products}", text).replace("{T}", dtype).replace("{t}", dtype.lower())
    (place / "csrc/testing/tiny.cu.jinja").write_text(source)
    cubin = jit.build(JitSpec.of("tiny", "testing/tiny", "sm_90a", value=42)).parent / "kernel.cubin"
    (words,) = sass_words.functions(cubin.read_bytes()).values()
    return [word & ~NUMBERS for word in words if sass_opcodes.opcode(word) in sass_opcodes.PRODUCTS]


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_one_statement_compiles_to_the_four_instructions_of_four_statements(root, cache_dir, dtype):  # noqa: F811
    alone = products(root, dtype, ALONE)
    jit.forget()
    assert len(alone) == 8
    assert products(root, dtype, TOGETHER) == alone
