"""Tensors that many calls share: complete on every stream, outside of graph pools, limited in bytes."""

import ast
import gc
import os
import sys
import threading
import weakref
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import opfacade
from opfacade.core import device_tensors
from opfacade.core.device_tensors import DerivedTensors, DeviceTensors

CPU = torch.device("cpu")


def filled(device, count, value=0):
    return torch.full((count,), value, device=device)


def test_a_tensor_is_made_once_and_serves_outside_of_inference_mode():
    kept = DeviceTensors(filled)
    with torch.inference_mode():
        found = kept.get(CPU, 3, 7)
    assert found.tolist() == [7, 7, 7]
    assert not found.is_inference()
    assert kept.get(CPU, 3, 7) is found
    assert kept.get(CPU, 3, 8) is not found


def test_the_bytes_of_all_are_bounded_and_the_one_not_asked_for_longest_goes():
    kept = DeviceTensors(lambda device, n: torch.zeros(n, dtype=torch.uint8), most_bytes=100)
    first, second = kept.get(CPU, 40), kept.get(CPU, 50)
    assert kept.get(CPU, 40) is first
    kept.get(CPU, 45)
    assert kept.get(CPU, 40) is first
    assert kept.get(CPU, 50) is not second
    large = kept.get(CPU, 1000)
    assert kept.get(CPU, 1000) is large
    assert kept._bytes == 1000


@pytest.mark.parametrize("lasting", [False, True])
def test_a_captured_graph_has_its_own_but_what_it_cannot_copy(monkeypatch, lasting):
    kept = DeviceTensors(filled, lasting=lasting)
    before = kept.get(CPU, 3)
    monkeypatch.setattr(device_tensors, "capturing", lambda device: True)
    assert (kept.get(CPU, 3) is before) == lasting
    assert kept.get(CPU, 4) is not kept.get(CPU, 4)
    assert kept.get(CPU, 4, 7).tolist() == [7, 7, 7, 7]


class Tensor:
    """A stub of a GPU tensor with the properties that the cache uses."""

    def __init__(self, count, gpu):
        self.nbytes, self.gpu, self.read_by = count, gpu, set()
        self.thread, self.stream = threading.get_ident(), gpu.stream
        gpu.done = False

    def record_stream(self, stream):
        self.read_by.add(stream)


@pytest.fixture
def gpu(monkeypatch):
    """A device whose work is finished once its stream was waited for."""
    gpu = SimpleNamespace(stream=0, done=True, devices=[])

    class Stream:
        def __init__(self, device):
            self.device = device

        def synchronize(self):
            gpu.done = True

    @contextmanager
    def on(stream):
        before, gpu.stream = gpu.stream, stream
        yield
        gpu.stream = before

    @contextmanager
    def device(which):
        gpu.devices.append(which)
        yield

    fakes = {
        "Stream": Stream, "stream": on, "device": device, "is_initialized": lambda: True, "current_device": lambda: 1,
        "is_current_stream_capturing": lambda: False, "ExternalStream": lambda address, device: (address, device),
    }  # fmt: skip
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: gpu.stream, raising=False)
    device_tensors._stream.cache_clear()
    yield gpu
    device_tensors._stream.cache_clear()


def test_a_tensor_of_a_gpu_is_complete_and_made_by_a_thread_and_a_stream_of_its_own(gpu):
    kept = DeviceTensors(lambda device, n: Tensor(n, gpu))
    found = kept.get(torch.device("cuda"), 4)
    assert gpu.done
    assert found.thread != threading.get_ident()
    assert found.stream.device == torch.device("cuda:1")
    assert kept.get(torch.device("cuda:1"), 4) is found
    assert kept.get(torch.device("cuda:0"), 4) is not found


def test_memory_goes_back_only_after_each_stream_that_may_read_it(gpu):
    kept, here = DeviceTensors(lambda device, n: Tensor(n, gpu), most_bytes=10), torch.device("cuda:1")
    first = kept.get(here, 4)
    gpu.stream = 0x70
    assert kept.get(here, 4) is first
    gpu.stream = 0x80
    kept.get(here, 9)
    assert first.read_by == {(0, here), (0x70, here)}


def test_an_error_of_the_thread_is_that_of_the_caller(gpu):
    def fails(device):
        raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        DeviceTensors(fails).get(torch.device("cuda:1"))


def test_threads_that_ask_at_once_get_one_tensor():
    kept, found, gate = DeviceTensors(filled), [], threading.Barrier(8)

    def ask():
        gate.wait()
        found.append(kept.get(CPU, 1000))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1


@pytest.fixture
def ordered(gpu, monkeypatch):
    """Streams that record which stream waits for which."""
    gpu.waits = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            gpu.waits.append((self.name, other.name))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream("callers"))
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream("own"))
    return gpu


@pytest.mark.parametrize("trees", [False, True])
def test_what_a_pass_shares_is_made_outside_of_graph_pools_in_the_order_of_the_stream(ordered, monkeypatch, trees):
    if trees:
        monkeypatch.setitem(sys.modules, device_tensors._TREES, SimpleNamespace())
    else:
        monkeypatch.delitem(sys.modules, device_tensors._TREES, raising=False)
    kept = device_tensors.beside(lambda: {"bits": Tensor(4, ordered), "more": (Tensor(2, ordered),)}, torch.device("cuda:1"))
    tensors = (kept["bits"], *kept["more"])
    assert [(t.thread != threading.get_ident(), len(t.read_by)) for t in tensors] == [(trees, int(trees))] * 2
    assert ordered.waits == ([("own", "callers"), ("callers", "own")] if trees else [])


def test_what_a_capture_makes_is_made_by_its_own_thread(ordered, monkeypatch):
    monkeypatch.setitem(sys.modules, device_tensors._TREES, SimpleNamespace())
    monkeypatch.setattr(device_tensors, "capturing", lambda device: True)
    made = device_tensors.beside(lambda: Tensor(4, ordered), torch.device("cuda:1"))
    assert made.thread == threading.get_ident()
    assert ordered.waits == []


def made_from(source):
    return lambda: source * 2


def test_a_value_made_from_tensors_is_kept_while_they_live_and_stay_as_they_are():
    kept, source, other = DerivedTensors(), torch.ones(3), torch.ones(3)
    first = kept.get((source, other), made_from(source))
    assert kept.get((source, other), made_from(source)) is first
    assert kept.get((other, source), made_from(other)) is not first
    source.fill_(5.0)
    assert kept.get((source, other), made_from(source)).tolist() == [10.0] * 3
    value = weakref.ref(kept.get((source, other), made_from(source)))
    del other
    gc.collect()
    assert value() is None
    assert not kept._entries


def test_nothing_is_kept_of_inference_tensors_and_while_a_graph_is_captured(monkeypatch):
    kept, source = DerivedTensors(), torch.ones(3)
    with torch.inference_mode():
        inference = torch.ones(3)
    assert kept.get((inference,), made_from(inference)) is not kept.get((inference,), made_from(inference))
    monkeypatch.setattr(device_tensors, "capturing", lambda device: True)
    assert kept.get((source,), made_from(source)) is not kept.get((source,), made_from(source))
    assert not kept._entries


def test_bytes_of_values_made_from_tensors_are_bounded_and_the_newest_is_kept():
    kept, sources = DerivedTensors(most_bytes=100), [torch.ones(n, dtype=torch.uint8) for n in (40, 50, 60, 1000)]
    for source in sources:
        kept.get((source,), made_from(source))
    assert [entry.value.nbytes for entry in kept._entries.values()] == [1000]
    assert kept.get((sources[3],), made_from(sources[3])) is kept.get((sources[3],), made_from(sources[3]))


class Source:
    """A GPU tensor of a caller."""

    device, _version = torch.device("cuda:1"), 0

    def is_inference(self):
        return False


def test_a_value_of_a_gpu_is_made_behind_the_callers_work_and_goes_after_all_streams(gpu, monkeypatch):
    waits = []

    class Stream:
        def wait_stream(self, other):
            waits.append(other)

        def synchronize(self):
            gpu.done = True

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "callers")
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream())
    monkeypatch.setattr(Tensor, "device", torch.device("cuda:1"), raising=False)
    kept, source = DerivedTensors(), Source()
    value = kept.get((source,), lambda: Tensor(4, gpu))
    assert gpu.done
    assert waits == ["callers"]
    assert value.thread != threading.get_ident()
    gpu.stream = 0x70
    assert kept.get((source,), lambda: None) is value
    del source
    gc.collect()
    assert value.read_by == {(0, torch.device("cuda:1")), (0x70, torch.device("cuda:1"))}


def forked(work):
    """The number that `work` returns in a forked child."""
    child = os.fork()
    if not child:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_child_of_a_fork_frees_no_tensor_that_streams_read(gpu, monkeypatch):
    """torch frees the tensor by a CUDA call, which aborts the child with SIGABRT."""
    gone, here = [], torch.device("cuda:1")
    monkeypatch.setattr(Tensor, "__del__", lambda tensor: gone.append(tensor.nbytes), raising=False)
    kept = DeviceTensors(lambda device, n: Tensor(n, gpu), most_bytes=100)
    kept.get(here, 60)
    read, pinned = Tensor(7, gpu), Tensor(8, gpu)
    device_tensors.read_by(read, "another")
    device_tensors.keep_in_children(pinned)
    local = threading.local()
    local.plain = Tensor(9, gpu)

    def child():
        nonlocal read, pinned, kept
        kept.get(CPU, 90)  # evicts the other entry in a process that still has it
        del read, pinned, kept
        local.__dict__.clear()
        gc.collect()
        return 0 if sorted(gone) == [9, 90] else 1

    assert forked(child) == 0
    del read, pinned
    gc.collect()
    assert sorted(gone) == [7, 8]  # the parent's entries are evicted as usual


def test_a_child_keeps_what_a_thread_that_did_not_survive_the_fork_held(gpu, monkeypatch):
    gone, ready, over = [], threading.Event(), threading.Event()
    monkeypatch.setattr(Tensor, "__del__", lambda tensor: gone.append(tensor.nbytes), raising=False)
    local = threading.local()

    def hold():
        local.value = Tensor(7, gpu)
        device_tensors.read_by(local.value, "another")
        ready.set()
        over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait(60)
    assert forked(lambda: gc.collect() * 0 + len(gone)) == 0
    over.set()
    thread.join()


MAKERS = {
    "arange", "as_tensor", "cat", "empty", "empty_like", "full", "full_like", "new_empty", "new_full", "new_zeros", "ones",
    "rand", "randn", "stack", "tensor", "to", "zeros", "zeros_like",
}  # fmt: skip


def kept_by_others(tree):
    """Functions with a caching decorator that create tensors, and module-level containers of tensors."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any("lru_cache" in ast.unparse(one) for one in node.decorator_list):
            calls = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
            if any(isinstance(one, ast.Attribute) and one.attr in MAKERS for one in calls):
                yield node.name
    for node in tree.body:
        empty = isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Dict) and not node.value.keys
        if empty and any(ast.unparse(one) in ("Tensor", "torch.Tensor") for one in ast.walk(node.annotation)):
            yield ast.unparse(node.target)


def test_no_other_cache_of_the_package_keeps_device_tensors():
    """Benchmarks and GPU tests have separate buffers, which no server creates."""
    package = Path(opfacade.__file__).parent
    paths = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("bench", "testing", "tune")]
    assert len(paths) > 300
    assert [(str(path), name) for path in paths for name in kept_by_others(ast.parse(path.read_text()))] == []


@pytest.mark.parametrize(
    "code",
    [
        "@lru_cache(maxsize=8)\ndef table(device):\n    return torch.arange(8, device=device)",
        "_tables: dict[int, torch.Tensor] = {}",
    ],
)
def test_a_cache_of_another_kind_is_found(code):
    assert list(kept_by_others(ast.parse(code)))
