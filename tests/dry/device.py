"""A simulated GPU: torch reports one, and its tensors are on the CPU."""

from collections import defaultdict
from types import SimpleNamespace

import torch
from torch.overrides import TorchFunctionMode

from opfacade import Target

_COSTLY = 1 << 12  # elements; larger tensors are not filled
_QUIET = ("synchronize", "set_sync_debug_mode", "empty_cache", "_sleep", "memory_allocated")
_CONTEXTS = ("CUDAGraph", "graph", "Stream", "stream", "Event", "device")


class _Nothing:
    """A stub for any class of torch.cuda."""

    cuda_stream = 0

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __getattr__(self, name):
        return lambda *args, **kwargs: 1.0 if name == "elapsed_time" else _Nothing()


def _is_cuda(value):
    return isinstance(value, str | torch.device) and str(value).partition(":")[0] == "cuda"


class OnCpu(TorchFunctionMode):
    """Tensors that are requested on a GPU, without the time to fill them."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = {name: "cpu" if _is_cuda(value) else value for name, value in (kwargs or {}).items() if name != "pin_memory"}
        args = tuple("cpu" if _is_cuda(value) else value for value in args)
        name = getattr(function, "__name__", "")
        if name == "cuda" or (name in ("normal_", "uniform_", "random_", "clone") and args[0].numel() > _COSTLY):
            return args[0]
        if name in ("randn", "rand"):
            return torch.zeros(*args, **{key: value for key, value in kwargs.items() if key != "generator"})
        return function(*args, **kwargs)


def install(monkey, arch):
    target, generator = Target.parse(arch), torch.Generator
    facts = SimpleNamespace(
        major=target.sm_version // 10, minor=target.sm_version % 10, multi_processor_count=target.sm_count, name=arch,
        shared_memory_per_block_optin=target.max_shared_memory, total_memory=150 << 30, L2_cache_size=50 << 20,
    )  # fmt: skip
    answers = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0, "get_device_properties": facts,
        "get_device_capability": (facts.major, facts.minor), "get_device_name": arch, "is_current_stream_capturing": False,
        "mem_get_info": (140 << 30, 150 << 30), "memory_stats": defaultdict(int), "current_stream": _Nothing(),
    } | dict.fromkeys(_QUIET, 0)  # fmt: skip
    for name, answer in answers.items():
        monkey.setattr(torch.cuda, name, lambda *args, _answer=answer, **kwargs: _answer)
    for name in _CONTEXTS:
        monkey.setattr(torch.cuda, name, _Nothing)
    monkey.setattr(torch, "Generator", lambda *args, **kwargs: generator())
