"""The time of a cold build of a matmul kernel, in CPU seconds, on which other work on the machine has less effect than on wall
time.

A build compiles device code and binding in parallel, so the wall time on two idle cores is below the sum.
"""

from unittest.mock import patch

import pytest

from bench.compile import cpu_seconds
from opfacade import Plan, Target, jit
from opfacade.jit import cache, toolchain
from opfacade.plans.matmul import MatmulDescriptor, Scaling

SM_90A = Target.parse("sm_90a")
MOST = 2.5  # seconds
TRIALS = 3  # other work on the machine, which shares caches and cores, can only lengthen a build
BLOCKS = Scaling(kind="block")
PROBLEMS = {
    "few-rows": MatmulDescriptor(total_num_rows=1, n=4096, k=4096, dtype="bf16"),
    "segments": MatmulDescriptor(total_num_rows=64, n=96, k=7168, dtype="bf16"),
    "large": MatmulDescriptor(total_num_rows=4096, n=1040, k=4096, dtype="f16", bias=True, activation="gelu_tanh"),
    "odd": MatmulDescriptor(total_num_rows=300, n=129, k=331, dtype="bf16"),
    "fp8": MatmulDescriptor(total_num_rows=4096, n=4096, k=4096, dtype="f8_e4m3", scaling=BLOCKS),
    "i8": MatmulDescriptor(total_num_rows=4096, n=4096, k=4096, dtype="i8", scaling=Scaling(kind="token")),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_cold_build_takes_a_few_cpu_seconds(name, monkeypatch, tmp_path):
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        plan = Plan.select(PROBLEMS[name], target=SM_90A)
    assert plan.sku.impl == "wgmma_tile"
    times = []
    while len(times) < TRIALS and min(times, default=MOST + 1) > MOST:
        monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path / str(len(times))))
        toolchain.find(cache.toolchain_memo())
        jit.key(plan.jit_spec)  # identifies the compilers, once per process
        before = cpu_seconds()
        jit.build(plan.jit_spec)
        times.append(cpu_seconds() - before)
    assert 0 < min(times) <= MOST, times
