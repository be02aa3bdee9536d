"""Two GPUs in one process: plans run on the second GPU while the first is current, are captured and timed, and leave the first
GPU alone.
"""

import os
import subprocess
import sys

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.errors import PlanStateError
from opfacade.plans.norm import NormArgs, NormDescriptor

pytestmark = pytest.mark.gpu
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def norm(rows, hidden=512):
    return Plan.select(NormDescriptor(kind="rms", total_num_rows=rows, hidden=hidden, dtype="f32"), Preference(backend="cuda"))


def operands(rows, device, hidden=512):
    x, weight = torch.randn(rows, hidden, device=device), torch.randn(hidden, device=device)
    return NormArgs(x=x, weight=weight, out=torch.full_like(x, torch.nan))


def right(args):
    want = args.x * (args.x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * args.weight
    torch.testing.assert_close(args.out, want, rtol=1e-5, atol=1e-5)


_ALONE = """
import ctypes, torch
from tests.backends.test_devices_gpu import norm, operands, right

def contexts():
    state, flags = ctypes.c_int(-1), ctypes.c_uint()
    asked = ctypes.CDLL("libcuda.so.1").cuDevicePrimaryCtxGetState
    return [asked(index, ctypes.byref(flags), ctypes.byref(state)) or state.value for index in range(2)]

plan = norm(7)
args = operands(7, "cuda:1")
assert torch.cuda.current_device() == 0
before = contexts()
plan.run(args)
torch.cuda.synchronize(1)
right(args)
assert torch.cuda.current_device() == 0
print("contexts", *before, *contexts())
"""


@two_gpus
def test_a_run_on_the_second_gpu_makes_no_context_on_the_first():
    """Runs in a separate process, where torch has a context on the second GPU only."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "contexts 0 1 0 1" in done.stdout, done.stdout


@two_gpus
def test_one_plan_runs_on_both_in_turns():
    plan = norm(9)
    for device in ("cuda:1", "cuda:0", "cuda:1"):
        args = operands(9, device)
        for _ in range(5):  # first the slow path, then the paths that reuse its results
            args.out.fill_(torch.nan)
            plan.run(args)
        right(args)


@two_gpus
def test_a_device_where_nothing_was_loaded_is_refused_in_a_capture_and_the_next_capture_replays():
    plan, args, other = norm(11, 768), operands(11, "cuda:0", 768), operands(11, "cuda:1", 768)
    plan.run(args)
    with torch.cuda.device(1):
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            graph.capture_begin()
            with pytest.raises(PlanStateError, match=r"cuda:1.*OPF-R003"):
                plan.run(other)
            graph.capture_end()
    plan.run(other)
    with torch.cuda.device(1), torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        plan.run(other)
    other.out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize(1)
    right(other)


@two_gpus
def test_a_launch_on_the_second_gpu_is_timed_there(monkeypatch, fresh_telemetry):
    """A gigabyte in and out takes more than 200 us on any GPU; on the idle stream of the first GPU it would take nothing."""
    monkeypatch.setenv("OPFACADE_TELEMETRY_SAMPLE", "1")
    plan, args = norm(32768, 8192), operands(32768, "cuda:1", 8192)
    for _ in range(8):
        plan.run(args)
        torch.cuda.synchronize(1)
    right(args)
    (counted,) = (one for one in fresh_telemetry.snapshot().values() if one["runs"])
    assert counted["latency"]["samples"] >= 4
    assert counted["latency"]["sum_us"] / counted["latency"]["samples"] > 200
