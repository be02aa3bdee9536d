"""csrc/common: the errors of a binding, and its launches on a GPU."""

import threading

import pytest
import torch

from opfacade import jit
from opfacade.jit import JitSpec
from opfacade.tools.doctor import driver_cuda
from tests.jit.fake_cuda import tensor


def good(**changes):
    return {"x": tensor([3, 8]), "ids": tensor([3, 5], "int32"), **changes}


@pytest.fixture(scope="session")
def checks(scale_cache):
    """The module of templates/csrc/testing/checks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_SOURCE_ROOT", str(scale_cache.parent / "root"))
        patch.setenv("OPFACADE_CACHE_DIR", str(scale_cache))
        return jit.load(JitSpec.of("checks", "testing/checks", "sm_90a", columns=8))


@pytest.fixture(scope="session")
def scaled(scale_cache):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPFACADE_SOURCE_ROOT", str(scale_cache.parent / "root"))
        patch.setenv("OPFACADE_CACHE_DIR", str(scale_cache))
        return jit.load(JitSpec.of("scale", "testing/scale", "sm_90a", threads=256))


REFUSED = {
    "rank": ({"x": tensor([3])}, ValueError, "x expected 2 dimensions [rows, 8], got [3]. [OPF-C001]"),
    "constant": ({"x": tensor([3, 9])}, ValueError, "x expected shape [rows=3, 8], got [3, 9]. [OPF-C002]"),
    "dim": ({"ids": tensor([4, 5], "int32")}, ValueError, "ids expected shape [rows=3, any], got [4, 5]. [OPF-C002]"),
    "dtype": ({"x": tensor([3, 8], "bfloat16")}, TypeError, "x expected float32, got bfloat16. [OPF-C003]"),
    "index": ({"ids": tensor([3, 5], "int64")}, TypeError, "ids expected int32, got int64. [OPF-C003]"),
    "host": ({"ids": torch.zeros(3, 5)}, ValueError, "ids expected a CUDA tensor, got a CPU tensor. [OPF-C004]"),
    "device": (
        {"ids": tensor([3, 5], "int32", device=1)},
        ValueError,
        "ids expected cuda:0 as the other tensors, got cuda:1. [OPF-C005]",
    ),
    "last": (
        {"x": tensor([3, 8], strides=[1, 3])},
        ValueError,
        "x expected stride 1 in the last dimension, got stride 3. [OPF-C006]",
    ),
    "rows": (
        {"ids": tensor([3, 5], "int32", strides=[6, 1])},
        ValueError,
        "ids expected a contiguous tensor, got stride 6 in dimension 0. [OPF-C006]",
    ),
    "null": ({"x": tensor([3, 8], data=0)}, ValueError, "x expected data, got a null pointer. [OPF-C007]"),
    "address": (
        {"x": tensor([3, 8], data=0x1004)},
        ValueError,
        "x expected an address that is a multiple of 16, got 4 past one. [OPF-C008]",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_tensor_is_refused_with_name_expected_and_actual_value(checks, case):
    changes, kind, message = REFUSED[case]
    with pytest.raises(kind) as caught:
        checks.run(*good(**changes).values(), 1, 0)
    assert str(caught.value) == f"Checks.run: {message}"


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_binding_refuses_a_wrong_number_of_operands(count):
    merge = jit.load(JitSpec.of("merge_states", "cascade/merge_states", "sm_90a", dtype="f16", head_dim=64))
    with pytest.raises(TypeError, match=rf"run expected \d arguments, got {count}. \[OPF-C009\]"):
        merge.run(*[torch.zeros(2, 3, 4, 64, dtype=torch.float16)] * count)


def test_a_launch_with_an_empty_grid_does_nothing(checks):
    checks.run(*good().values(), 0, 0)
    checks.run(tensor([0, 8], data=0), tensor([0, 5], "int32", data=0), 0, 0)


def test_strides_of_axes_of_size_one_are_ignored(checks):
    checks.run(tensor([1, 8], strides=[77, 1]), tensor([1, 1], "int32", strides=[9, 9]), 0, 0)


def test_a_grid_that_exceeds_the_hardware_is_refused(checks):
    with pytest.raises(ValueError, match="OPF-C022"):
        checks.run(*good().values(), 2**32 + 1, 0)


@pytest.mark.skipif(driver_cuda() > 0, reason="this machine has a driver, and the error is that of one without")
def test_a_launch_without_a_driver_raises_an_error(checks):
    with pytest.raises(RuntimeError, match="OPF-C021"):
        checks.run(*good().values(), 1, 0)


@pytest.mark.gpu
def test_a_kernel_computes_its_output(scaled):
    x, y = torch.randn(1000, device="cuda"), torch.full((1000,), torch.nan, device="cuda")
    scaled.run(x, y, 2.5)
    assert torch.equal(y, x * 2.5)


@pytest.mark.gpu
def test_a_kernel_runs_on_torchs_stream_and_in_a_graph(scaled):
    x, y = torch.randn(1000, device="cuda"), torch.zeros(1000, device="cuda")
    scaled.prepare(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scaled.run(x, y, 3.0)
    assert not y.any()
    graph.replay()
    assert torch.equal(y, x * 3.0)


@pytest.mark.gpu
def test_a_launch_can_request_large_shared_memory(checks):
    x, ids = torch.zeros(3, 8, device="cuda"), torch.zeros(3, 5, device="cuda", dtype=torch.int32)
    for shared in (0, 1024, 200 * 1024, 100 * 1024):
        checks.run(x, ids, 1, shared)
        assert x[0, 0].item() == shared
    assert checks.occupancy(0, 200 * 1024) == torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(RuntimeError, match="OPF-C020"):
        checks.run(x, ids, 1, 10 << 20)
    checks.run(x, ids, 1, 64)
    assert x[0, 0].item() == 64


@pytest.mark.gpu
def test_a_thread_without_a_current_context_can_launch(scaled):
    results = []

    def work(factor):
        x = torch.ones(1000, device="cuda")
        y = torch.zeros_like(x)
        scaled.run(x, y, factor)
        results.append(bool((y == factor).all()))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


@pytest.mark.gpu
def test_a_launch_uses_the_device_of_the_tensors(scaled):
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two devices")
    x = torch.randn(1000, device="cuda:1")
    y = torch.zeros_like(x)
    scaled.run(x, y, 2.0)
    assert torch.equal(y, x * 2.0)
    assert torch.cuda.current_device() == 0
