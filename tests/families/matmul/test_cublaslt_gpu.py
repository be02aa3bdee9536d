"""Products by torch's cuBLASLt on a GPU: bounds, strides, streams and graphs."""

from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.library import cublaslt_abi as abi
from opfacade.backends.library import cublaslt_library as cublaslt
from opfacade.backends.library import matmul as backend
from opfacade.backends.library.cublaslt_product import Call, Product
from opfacade.select.registry import configs_for
from opfacade.testing import inputs, numerics
from opfacade.tune.tune import tune
from tests.families.matmul.test_cublaslt import FORMS, made

pytestmark = pytest.mark.gpu
LIBRARY = Preference(backend="library")
LARGE = {
    "tf32": made(130, 257, 1030, "f32", fp32_precision="tf32"),
    "long-tf32": made(16, 64, 16384, "f32", fp32_precision="tf32", bias=True),
    "square": made(512, 512, 512),
    "few-rows": made(3, 4096, 4096),
    "long": made(16, 64, 16384, "f16"),
    "long-f32": made(16, 64, 16384, "f32"),
    "odd": made(129, 1001, 777, "f16"),
    "odd-f32": made(129, 1001, 777, "f32"),
    "wide-f64": made(130, 260, 1030, "f64"),
    "gradient": made(256, 512, 1000, x_layout="km", weight_layout="kn", out_dtype="f32", accumulate=True),
}


@pytest.fixture(autouse=True)
def _installed():
    if cublaslt.installed() is None:
        pytest.skip("no package of cuBLAS is installed")


def test_the_loaded_library_is_the_installed_one():
    assert cublaslt.load(cublaslt.installed()).functions.cublasLtGetVersion() > 0


@pytest.mark.parametrize("lean", [False, True])
@pytest.mark.parametrize("name", FORMS | LARGE)
def test_it_keeps_its_bound_on_a_gpu(name, lean):
    problem = (FORMS | LARGE)[name]
    prefer = Preference(backend="library", max_workspace_bytes=0 if lean else None)
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, prefer)
    if not problem.accumulate:
        args.out.fill_(float("nan"))
    before = numerics.snapshot(problem, args)
    plan.run(args)
    assert numerics.check(problem, args, plan.sku, before=before).worst <= 1


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_addresses_and_rows_of_any_alignment(dtype):
    problem = made(33, 40, 72, dtype)
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, LIBRARY)
    for shift in (1, 2, 3):
        moved = {}
        for name in ("x", "weight", "out"):
            tensor = getattr(args, name)
            wide = torch.full((tensor.shape[0], tensor.shape[1] + 2 * shift), float("nan"), device="cuda", dtype=tensor.dtype)
            moved[name] = wide[:, shift:-shift].copy_(tensor)
        other = replace(args, **moved)
        plan.run(other)
        assert numerics.check(problem, other, plan.sku).worst <= 1
        assert other.out._base[:, :shift].isnan().all()
        assert other.out._base[:, -shift:].isnan().all()


@pytest.mark.parametrize("sizes", [(512, 512, 512), (3, 4096, 4096), (129, 1001, 777)])
def test_products_of_bf16_have_the_range_of_bf16(sizes):
    """Numbers that f16 cannot represent, large and small, by every algorithm that the library offers."""
    problem = made(*sizes)
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, LIBRARY)
    args.x.mul_(2.0**40)
    args.weight.mul_(2.0**-60)
    product = product_of(problem)[1]
    for chosen in product.allowed():
        product.chosen = chosen
        workspace = torch.empty(32 << 20, dtype=torch.uint8, device="cuda")
        one, zero = cublaslt.ctypes.c_float(1), cublaslt.ctypes.c_float(0)
        out = args.out.fill_(float("nan")).data_ptr()
        stream = backend.stream_of(args.out.device)
        pointers = (args.weight.data_ptr(), args.x.data_ptr(), out, out, 0, workspace.data_ptr(), stream)
        product.run(Call(one, zero, *pointers))
        assert numerics.check(problem, args, plan.sku, rows=50).worst <= 1


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f64"])
def test_nan_and_infinity_stay_in_their_row(dtype):
    problem = made(70, 96, 200, dtype)
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, LIBRARY)
    args.x[5, 7], args.x[9, 3] = float("nan"), float("inf")
    plan.run(args)
    assert args.out[5].isnan().all()
    assert not args.out[9].isfinite().any()
    rest = [row for row in range(70) if row not in (5, 9)]
    assert args.out[rest].isfinite().all()


def test_a_captured_call_is_replayed_with_new_values():
    problem = made(64, 128, 256, bias=True)
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, LIBRARY)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plan.run(args, workspace)
    args.x.copy_(torch.randn_like(args.x))
    args.out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert numerics.check(problem, args, plan.sku).worst <= 1


def test_a_run_allocates_nothing_with_its_workspace():
    problem = made(64, 128, 256, "f32")
    args, plan = inputs.make_args(problem, 3, "cuda"), Plan.select(problem, LIBRARY)
    workspace = torch.empty(plan.workspace_size, dtype=torch.uint8, device="cuda")
    plan.run(args, workspace)
    torch.cuda.synchronize()
    # Other processes also change the free memory of the device: an allocation of each run would show in every one of the turns.
    taken = []
    for _ in range(5):
        used, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
        for _ in range(10):
            plan.run(args, workspace)
        torch.cuda.synchronize()
        assert torch.cuda.memory_allocated() == used
        taken.append(free - torch.cuda.mem_get_info()[0])
    assert min(taken) <= 0


def product_of(problem):
    """The description for the current device, as a run creates it."""
    args, device = inputs.make_args(problem, 3, "cuda"), torch.device("cuda", torch.cuda.current_device())
    library = cublaslt.load(cublaslt.installed())
    return library, Product(library, library.handle(device), backend._facts_of(problem, args, 32 << 20))


@pytest.mark.parametrize("name", LARGE)
def test_every_algorithm_that_the_library_offers_is_one_that_was_asked_for(name):
    """So the masks of the preference have the meaning that we assume."""
    library, product = product_of(LARGE[name])
    results, count = (abi.HeuristicResult * 16)(), cublaslt.ctypes.c_int()
    facts = (product._handle, product._description, *product._layouts, product._preference())
    library.call("cublasLtMatmulAlgoGetHeuristic", *facts, 16, results, cublaslt.ctypes.byref(count))
    assert count.value > 0
    assert len(product.allowed()) == count.value


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_emulation_is_not_used_where_the_environment_asks_for_it(dtype, monkeypatch):
    """The variables are read when a library starts, so this runs in a separate process."""
    import os
    import subprocess
    import sys

    code = (
        "from opfacade import Plan, Preference\n"
        "from opfacade.testing import inputs, numerics\n"
        "from tests.families.matmul.test_cublaslt import made\n"
        f"problem = made(512, 512, 4096, {dtype!r})\n"
        "plan = Plan.select(problem, Preference(backend='library'))\n"
        "args = inputs.make_args(problem, 3, 'cuda')\n"
        "plan.run(args)\n"
        "first = args.out.clone()\n"
        "assert numerics.check(problem, args, plan.sku, rows=40).worst <= 1\n"
        "import torch, hashlib\n"
        "print(hashlib.sha256(first.cpu().numpy().tobytes()).hexdigest())\n"
    )
    wishes = {
        "CUBLAS_EMULATE_SINGLE_PRECISION": "1",
        "CUBLAS_EMULATE_DOUBLE_PRECISION": "1",
        "CUBLAS_EMULATION_STRATEGY": "eager",
    }
    wishes["NVIDIA_TF32_OVERRIDE"] = "1"
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, **more}, check=True, timeout=120, capture_output=True
        ).stdout
        for more in ({}, wishes)
    ]
    assert found[0] == found[1]


REPEATED = {
    "f32": made(300, 700, 1500, "f32"),
    "bf16": made(17, 4096, 4096),
    "f16": made(129, 1001, 777, "f16"),
    "f16-bias-to-f32": made(129, 1001, 777, "f16", bias=True, out_dtype="f32"),
    "f64": made(130, 260, 1030, "f64"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_kept_algorithm_repeats_its_bits(name, monkeypatch, tmp_path):
    """Bits are equal for other addresses, streams and contents of the workspace."""
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    problem = REPEATED[name]
    args = inputs.make_args(problem, 3, "cuda")
    device = args.out.device
    backend._learn(problem, Target.current(), 32 << 20)
    kept = [one for one in configs_for(type(problem)) if one.config.startswith("kept_")]
    kept = [one for one in kept if not one.declines(problem, Target.current())]
    assert kept
    for candidate in kept:
        sku = candidate.sku(problem, Target.current())
        plan, found = Plan.select(problem, Preference(pin=sku.id)), []
        for fill in (0, 255, 63):
            moved = {n: t.clone() for n in ("x", "weight", "bias") if (t := getattr(args, n)) is not None}
            call = replace(args, **moved, out=torch.full_like(args.out, float("nan")))
            with torch.cuda.stream(torch.cuda.Stream(device)):
                torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
                plan.run(call, torch.full((plan.workspace_size,), fill, dtype=torch.uint8, device=device))
            torch.cuda.synchronize()
            found.append(call.out)
        assert all(torch.equal(found[0], one) for one in found)
        assert numerics.check(problem, replace(args, out=found[0]), sku).worst <= 1


def test_tune_keeps_algorithms_and_times_them(monkeypatch, tmp_path):
    monkeypatch.setenv("OPFACADE_CACHE_DIR", str(tmp_path))
    (found,) = tune([made(1000, 512, 2048, "f32")])
    assert not found.wrong
    assert sum("algo=sha256-" in one.sku for one in found.row.measured) >= 1
    assert sum("algo=heuristic" in one.sku for one in found.row.measured) == 2
