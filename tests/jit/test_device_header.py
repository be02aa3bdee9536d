"""kernels/common/device.cuh replaces cuda_runtime.h: both must give the same code."""

import re

import pytest

from opfacade.jit import JitSpec, build, codegen, key
from tests.jit.conftest import REPO

_HEADER = (REPO / "kernels/common/device.cuh").read_text()
_UNARY = re.findall(r"OPF_UNARY\((\w+)\)", _HEADER.split("#undef")[0])[1:]
_BINARY = re.findall(r"OPF_BINARY\((\w+)\)", _HEADER.split("#undef")[0])[1:]
_EVERYTHING = """
template <class T> __device__ T extremes(T a, T b) { return min(a, b) * max(b, a + 1); }

extern "C" __global__ void all(float* f, double* d, int* i, long long* l, unsigned* u, unsigned long long* v) {
  __shared__ float row[64];
  row[threadIdx.x % 64] = f[blockIdx.x];
  __syncthreads();
  CALLS
  float s, c;
  sincosf(f[1], &s, &c);
  f[2] = fmaf(s, c, extremes(f[3], row[(threadIdx.x + 1) % 64])) + __shfl_xor_sync(0xffffffffu, f[4], 1);
  d[2] = fma(d[0], d[1], extremes(d[3], d[4]));
  i[0] = extremes(i[1], i[2]) + __popc(u[1]) + __ffs(i[3]) + __ballot_sync(0xffffffffu, i[4] > 0);
  l[0] = extremes(l[1], l[2]);
  u[0] = extremes(u[1], u[2]) + atomicAdd(u + 3, 1u) + atomicCAS(u + 4, 0u, 1u);
  v[0] = extremes(v[1], v[2]) + atomicAdd(v + 3, 1ull);
  *reinterpret_cast<float4*>(f + 64) = make_float4(__expf(f[5]), __uint_as_float(u[5]), row[1], __fdividef(f[6], f[7]));
  memcpy(f + 32, f + 48, 8);
  __threadfence();
}
"""


def source():
    calls = [f"f[{i + 8}] = {name}f(f[{i + 9}]); d[{i + 8}] = {name}(d[{i + 9}]);" for i, name in enumerate(_UNARY)]
    calls += [f"f[{i + 128}] = {name}f(f[9], f[{i}]); d[{i + 128}] = {name}(d[9], d[{i}]);" for i, name in enumerate(_BINARY)]
    return _EVERYTHING.replace("CALLS", "\n  ".join(calls))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_its_declarations_compile_to_the_code_of_the_toolkit(root, cache_dir, arch):
    assert len(_UNARY) > 15
    assert len(_BINARY) > 4
    (root / "csrc/testing/all.cc.jinja").write_text("int answer() { return 1; }\n")
    cubins = []
    for first in ("// allows: spills\n", "// allows: spills\n// needs: cuda_runtime.h\n"):
        (root / "csrc/testing/all.cu.jinja").write_text(first + source())
        spec = JitSpec.of("all", "testing/all", arch)
        assert codegen.render(spec).lean is ("needs" not in first)
        cubins.append((build(spec).parent / "kernel.cubin").read_bytes())
        cubins.append(key(spec))
    assert cubins[0] == cubins[2]
    assert cubins[1] != cubins[3]
