"""A pytest plugin: `flashinfer` is opfacade.compat.flashinfer, and each test passes, is refused with a reason, fails or skips.
"wider": a call works here that the test expects to be refused. "words": the test expects other words of an error.

FlashInfer's tests compare a wrapper with the call of one request. So that ours are not compared with ours, that call is a dense
oracle in float64, but in the files that test the call itself.
"""

from __future__ import annotations

import collections
import gc
import json
from pathlib import Path

import pytest
import torch
from flashinfer_stand_in import Missing, NotHere, install
from flashinfer_torch import on_cpu, oracle_of_single_calls

from opfacade import Preference
from opfacade.compat import preferring
from opfacade.errors import UnsupportedError

install()

FILES = (
    "alibi", "batch_attention", "batch_decode_kernels", "batch_invariant_fa2", "batch_prefill", "batch_prefill_kernels",
    "decode_fp8_calibration_scale", "decode_prefill_lse", "deepseek_mla", "fp8_prefill", "hopper", "hopper_fp8_attention",
    "logits_cap", "mla_decode_kernel", "mla_page", "non_contiguous_decode", "non_contiguous_prefill", "page",
    "shared_prefix_kernels", "single_prefill", "sliding_window", "tensor_cores_decode",
)  # fmt: skip
# Their subject is the call of one request, and their oracle is their own.
OF_SINGLE_CALLS = {
    "test_alibi",
    "test_hopper",
    "test_logits_cap",
    "test_single_prefill",
    "test_fp8_prefill",
    "test_decode_prefill_lse",
}

# They start a process that imports FlashInfer itself, or compile its sources.
OF_FLASHINFER_ITSELF = ("torch_compile_cuda_graph", "cuda_graph_bad_scale", "test_norm_compilation_without_fp8")

# They expect FlashInfer's refusal of calls that give right results here.
WIDER = {
    "test_layernorm_quant_invalid_inputs": "layernorm_quant takes f16 and rows with a stride",
    "test_batch_decode_rejects_unequal_kv_strides_nvfp4_contract": "K and V may have strides of their own",
    "test_tensor_core_decode_rejects_mismatched_q_len": "use_tensor_cores is a hint: several rows of a request need none",
}

_results: dict[str, dict[str, str]] = collections.defaultdict(dict)
_reasons: collections.Counter[str] = collections.Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("opfacade")
    group.addoption("--opfacade-cpu", action="store_true", help="run on the CPU: devices are redirected, the reference answers")
    group.addoption("--opfacade-json", default="", help="a file for the table")
    group.addoption("--opfacade-most", type=int, default=0, help="at most so many cases of a test function, spread evenly")


def pytest_configure(config: pytest.Config) -> None:
    if not config.args or config.args == [str(config.invocation_params.dir)]:
        places = [Path("tests/attention") / f"test_{name}.py" for name in FILES] + [Path("tests/utils/test_quantization.py")]
        config.args[:] = [str(place) for place in places if place.exists()]
    if config.getoption("--opfacade-cpu"):
        on_cpu()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not any(name in item.nodeid for name in OF_FLASHINFER_ITSELF)]
    most = config.getoption("--opfacade-most")
    if not most:
        return
    by_function: dict[object, list[pytest.Item]] = collections.defaultdict(list)
    for item in items:
        by_function[item.nodeid.partition("[")[0]].append(item)
    items[:] = [item for found in by_function.values() for item in found[:: max(1, -(-len(found) // most))]]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    own = item.path.stem in OF_SINGLE_CALLS
    preference = None if item.config.getoption("--opfacade-cpu") else Preference(backend="cuda")
    with preferring(preference), oracle_of_single_calls(not own):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    name = item.path.stem
    if report.skipped:
        _results[name][item.nodeid] = "skip"
    elif report.failed:
        _results[name][item.nodeid] = _judged(item, call.excinfo.value if call.excinfo else None)
    elif report.when == "call":
        _results[name][item.nodeid] = "pass"
    return report


def _judged(item: pytest.Item, error: BaseException | None) -> str:
    """A refusal names what there is not, some tests ask for FlashInfer's own words or limits, and the rest are failures."""
    if "Regex pattern did not match" in str(error) and "[OPF-" in str(error):
        _reasons["the error says it in other words"] += 1
        return "words"
    wider = WIDER.get(item.name.partition("[")[0])
    if wider and "DID NOT RAISE" in str(error):
        _reasons[wider] += 1
        return "wider"
    while error is not None:
        if isinstance(error, (UnsupportedError, NotHere)) or "OPF-C008" in str(error):
            _reasons[str(error).splitlines()[0][:160]] += 1
            return "refuse"
        error = error.__cause__ or error.__context__
    return "fail"


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Several processes share the GPU: none keeps the memory of its largest test."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    words = ("pass", "refuse", "wider", "words", "fail", "skip")
    table = {name: collections.Counter(found.values()) for name, found in sorted(_results.items())}
    write = terminalreporter.write_line
    write("")
    write(f"{'file':34}" + "".join(f"{word:>8}" for word in words))
    for name, found in table.items():
        write(f"{name:34}" + "".join(f"{found[word]:8}" for word in words))
    write(f"{'all':34}" + "".join(f"{sum(found[word] for found in table.values()):8}" for word in words))
    for reason, count in _reasons.most_common(40):
        write(f"{count:6}  {reason}")
    for found in _results.values():
        for test, result in found.items():
            if result == "fail":
                write(f"fail    {test}")
    if config.getoption("--opfacade-json"):
        failed = [test for found in _results.values() for test, result in found.items() if result == "fail"]
        record = {"files": table, "reasons": _reasons, "failed": failed}
        Path(config.getoption("--opfacade-json")).write_text(json.dumps(record, indent=1))


__all__ = ["Missing"]
