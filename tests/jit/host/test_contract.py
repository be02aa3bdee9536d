"""csrc/host/call_signature.h and backends/cuda/direct.py: the fast path refuses every call that the full check refuses.

These tests run on the CPU: the device of the signature is the host, and a run only counts.
"""

import random
import sys
import threading
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from opfacade.backends.cuda.host.direct import Direct, KernelCall, require_fit
from opfacade.core.candidate import WORKSPACE_ALIGNMENT
from opfacade.core.checks import check, check_beside
from opfacade.plans._attention.paging import PagedKvCacheDescriptor
from opfacade.plans.attention import BatchPagedDecodeDescriptor
from opfacade.plans.kv_cache import PagedKvAppendDescriptor
from opfacade.testing import inputs
from tests.jit.conftest import REGISTERED
from tests.support.fuzzing import small, spoiled_args, spoiled_tensor

OPS = ("paged_prefill", "paged_decode", "ragged_prefill", "paged_kv_append", "merge_states")
HOST = 1  # kDLCPU
NEEDED = 512
CACHE = PagedKvCacheDescriptor(num_total_pages=8, page_size=4, num_kv_heads=2, head_dim=16, dtype="f16", layout="HND")
DECODE = BatchPagedDecodeDescriptor(batch_size=3, num_qo_heads=4, paged_kv=CACHE)


def fast(module, descriptor, *args, needed=0, scalars=(2, 0.5)):
    """A fast path that has learned from the given argument bundles."""
    direct = Direct(module, KernelCall(module.run, scalars, needed > 0, needed, HOST), descriptor)
    for one in args:
        direct.learn(one)
    return direct.paths.fast


def refused(descriptor, args, workspace, needed):
    """True if the full check refuses the call."""
    if type(args) is not descriptor.args_type:
        return True
    fields = {name: getattr(args, name) for name in type(args).__slots__}
    issues = check(descriptor.operands(), fields, "cpu")
    if not issues and workspace is not None:
        sound = {name: fields[name] for name in descriptor.operands()}
        issues = check_beside(sound, workspace, needed, WORKSPACE_ALIGNMENT)
    return bool(issues)


def aligned(size):
    room = torch.empty(size + WORKSPACE_ALIGNMENT, dtype=torch.uint8)
    return room[-room.data_ptr() % WORKSPACE_ALIGNMENT :][:size]


def in_arena(rng, arena, tensor):
    """A view with exactly or nearly the form of a tensor, in memory that other views may share."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor
    room = arena.view(tensor.dtype)
    strides, step = [0] * tensor.dim(), 1
    order = list(range(tensor.dim() - 1))
    rng.shuffle(order)
    for axis in [tensor.dim() - 1, *order]:
        strides[axis] = step if axis == tensor.dim() - 1 or rng.random() < 0.9 else 0
        step = max(1, step * tensor.shape[axis] + rng.choice((0, 0, 8, 8, 1, -step)))
    offset = rng.randrange(0, 64) * rng.choice((1, 8, 8, 64))
    reach = sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True))
    return torch.as_strided(room, tensor.shape, strides, offset) if offset + reach < room.numel() else tensor


def shrunk(tensor, size, keep):
    """A tensor whose memory has shrunk and whose extent no test has registered: storage_extents.h explains why it
    would pass."""
    while True:
        whole = tensor.clone()
        whole.untyped_storage().resize_(size)
        if size == 0 or size >= whole.nbytes or whole.data_ptr() not in REGISTERED:
            return whole
        keep.append(whole)


def disturbed(rng, args, workspace, keep):
    """A valid, invalid or nearly valid call. All its tensors stay alive, so that no address is reused."""
    what = rng.random()
    names = [n for n in type(args).__slots__ if getattr(args, n) is not None]
    if what < 0.3:
        args = spoiled_args(rng, args, rng.choice((1, 1, 2)))
    elif what < 0.7:
        arena = torch.zeros(1 << 18, dtype=torch.uint8)
        keep.append(arena)
        args = replace(
            args,
            **{n: in_arena(rng, arena, getattr(args, n)) for n in rng.sample(names, min(len(names), rng.choice((1, 2, 2, 3))))},
        )
        if rng.random() < 0.3:
            workspace = arena[256 * rng.randrange(16) :][:NEEDED]
    elif what < 0.8:
        args = replace(args, **{n: getattr(args, n).clone() for n in names})
    elif what < 0.85:
        absent = [n for n in type(args).__slots__ if getattr(args, n) is None]
        args = replace(args, **{rng.choice(absent or names): torch.zeros(3, dtype=torch.int32)})
    elif what < 0.9:
        name = rng.choice(names)
        whole = getattr(args, name)
        args = replace(args, **{name: shrunk(whole, rng.choice((0, 8, whole.nbytes // 2, whole.nbytes)), keep)})
    elif what < 0.93:
        workspace = shrunk(workspace, rng.choice((0, 8, workspace.nbytes - 1, workspace.nbytes)), keep)
    else:
        workspace = spoiled_tensor(rng, workspace, [getattr(args, n) for n in names])
    keep += [args, workspace]
    return args, workspace


_alive = []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(OPS), st.integers(0, 2**32))
def test_the_fast_path_refuses_whatever_the_full_check_refuses(module, op, seed):
    rng = random.Random(seed)
    descriptor = small(op, rng)
    sound, workspace = inputs.make_args(descriptor, seed=seed), aligned(NEEDED)
    _alive.extend([sound, workspace])
    call = fast(module, descriptor, sound, needed=NEEDED)
    assert call(sound, workspace, True)
    assert module.arguments() == len(descriptor.operands()) + 1 + 2
    for _ in range(12):
        args, scratch = disturbed(rng, sound, workspace, _alive)
        before = module.called()
        if refused(descriptor, args, scratch, NEEDED):
            assert not call(args, scratch, False), (descriptor, args, scratch)
            assert not call(args, scratch, True)
            assert module.called() == before


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(OPS), st.integers(0, 2**32))
def test_new_tensors_of_a_valid_form_use_the_fast_path(module, op, seed):
    rng = random.Random(seed)
    descriptor = small(op, rng)
    first = inputs.make_args(descriptor, seed=seed)
    call = fast(module, descriptor, first)
    for more in range(4):
        args = inputs.make_args(descriptor, seed=seed + more)
        arena = torch.zeros(1 << 20, dtype=torch.uint8)
        names = [n for n in type(args).__slots__ if getattr(args, n) is not None]
        moved = replace(args, **{n: in_arena(rng, arena, getattr(args, n)) for n in rng.sample(names, 2)})
        assert call(args, None, True)
        assert call(moved, None, False) is not refused(descriptor, moved, None, 0)


def test_only_learned_forms_use_the_fast_path(module):
    args = inputs.make_args(DECODE, seed=1)
    assert not fast(module, DECODE)(args, None, True)
    call = fast(module, DECODE, args)
    assert not call(replace(args, q=args.q.clone().requires_grad_()), None, True)
    assert not call(replace(args, q=torch.nn.Parameter(args.q, requires_grad=False)), None, True)
    assert not call(replace(args, q=args.q.numpy()), None, True)
    assert not call(None, None, True)
    with torch.inference_mode():
        assert not call(replace(args, q=args.q.clone()), None, True)


def test_a_bundle_that_needs_a_gradient_is_not_learned(module):
    args = inputs.make_args(DECODE, seed=1)
    args = replace(args, q=args.q.clone().requires_grad_())
    assert not fast(module, DECODE, args)(args, None, True)


@pytest.mark.parametrize("guards", ["torch's", "compared in Python"])
def test_parameters_use_the_fast_path_only_under_no_grad(module, guards, monkeypatch):
    if guards != "torch's":
        monkeypatch.setitem(sys.modules, "torch._C._dynamo.guards", None)
    args = inputs.make_args(DECODE, seed=1)
    args = replace(args, q=torch.nn.Parameter(args.q))
    with torch.no_grad():
        call = fast(module, DECODE, args)
        assert call(args, None, True)
        with torch.enable_grad():
            assert not call(args, None, True)
        assert call(args, None, True)


def test_index_tensors_of_another_length_use_the_fast_path(module):
    args = inputs.make_args(DECODE, seed=1)
    call = fast(module, DECODE, args)
    for n in (0, 1, 7):
        assert call(replace(args, kv_indices=torch.zeros(n, dtype=torch.int32)), None, True)


def test_k_and_v_interleaved_in_one_buffer_use_the_fast_path(module):
    append = PagedKvAppendDescriptor(batch_size=1, total_num_rows=3, paged_kv=CACHE)
    args = inputs.make_args(append, seed=1)
    both = torch.zeros(8, 2, 2, 4, 16, dtype=torch.float16)
    call = fast(module, append, args)
    assert call(replace(args, k_data=both[:, 0], v_data=both[:, 1]), None, True)
    assert not call(replace(args, k_data=both[:, 0], v_data=both[:, 0]), None, True)


def test_a_required_workspace_is_allocated_or_checked(module):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = fast(module, DECODE, args, needed=NEEDED)
    assert call(args, None, False)
    assert call(args, workspace, True)
    assert not call(args, workspace[:-1], True)
    assert not call(args, workspace.view(torch.int8), True)
    assert not call(args, aligned(NEEDED + 1)[1:], True)
    assert not call(replace(args, lse=workspace[:48].view(torch.float32).view(3, 4)), workspace, True)
    fast(module, DECODE, args)(args, None, True)
    assert module.arguments() == len(DECODE.operands()) + 2


STRANGE_WORKSPACES = {
    "shrunk": lambda workspace: shrunk(workspace, NEEDED - 1, _alive),
    "freed": lambda workspace: shrunk(workspace, 0, _alive),
    "sparse": lambda workspace: workspace.to_sparse(),
    "nested": lambda _: torch.nested.nested_tensor([torch.zeros(NEEDED), torch.zeros(9)]).to(torch.uint8),
    "fake": lambda workspace: FakeTensorMode().from_tensor(workspace),
    "elsewhere": lambda workspace: workspace.to("meta"),
}


@pytest.mark.parametrize("name", STRANGE_WORKSPACES)
def test_an_unsuitable_workspace_is_refused(module, name):
    args, workspace = inputs.make_args(DECODE, seed=1), aligned(NEEDED)
    call = fast(module, DECODE, args, needed=NEEDED)
    assert call(args, workspace, True)
    strange = STRANGE_WORKSPACES[name](workspace)
    assert refused(DECODE, args, strange, NEEDED)
    called = module.called()
    assert not call(args, strange, False)
    assert not call(args, strange, True)
    assert module.called() == called


def test_a_workspace_that_shrinks_in_place_is_refused(module):
    args = inputs.make_args(DECODE, seed=1)
    call = fast(module, DECODE, args, needed=NEEDED)
    workspace = torch.zeros(1 << 20, dtype=torch.uint8)
    workspace = workspace[-workspace.data_ptr() % WORKSPACE_ALIGNMENT :]
    assert call(args, workspace, True)
    workspace.untyped_storage().resize_(NEEDED // 2)
    assert not call(args, workspace, True)


def test_a_failed_launch_is_repeated_by_the_full_check(module):
    args = inputs.make_args(DECODE, seed=1)
    assert not fast(module, DECODE, args, scalars=(1, -1.0))(args, None, True)


def test_a_signature_refuses_more_operands_than_it_can_store(module):
    with pytest.raises(ValueError, match="OPF-C031"):
        module.signature(module.run, HOST, False, 0, 33)
    with pytest.raises(ValueError, match="OPF-C031"):
        module.signature(module.run, HOST, False, 0, 1, 1, 0, 0, 0, 1, -1, -1, 16, 2, 16, 9)
    with pytest.raises(TypeError, match="OPF-C009"):
        module.signature(module.run, HOST, False, 0, 1, 1, 0, 0, 0, 1, -1, -1, 16, 2, 16, 2, 3)
    with pytest.raises(ValueError, match="OPF-C031"):
        module.signature(module.run, HOST, False, 0, 1, 1, 0, 0, 0, 0, -1, -1, 16, 2, 16, 1, 3)
    with pytest.raises(ValueError, match="OPF-C031"):
        module.signature(module.run, HOST, False, 0, 1, 1, 0, 0, 0, 1, 1, -1, 16, 2, 16, 1, 3)
    with pytest.raises(TypeError, match="OPF-C009"):
        module.signature(module.run, HOST)
    with pytest.raises(TypeError, match="OPF-C009"):
        module.signature(module.run, HOST, False, 0, 0, 1, 2.5, True, "text")


def test_a_descriptor_with_too_many_operands_has_no_launcher():
    require_fit(DECODE, (1, 2.5, True))
    for scalars in ((1, "text"), (1,) * 25):
        with pytest.raises(
            TypeError, match="paged_decode: the host library supports at most 32 fields of rank 8 and 24 scalars"
        ):
            require_fit(DECODE, scalars)


def replace_batch(n):
    return DECODE.model_copy(update={"batch_size": n}).revalidated()


def test_threads_share_a_fast_path(module):
    descriptors = [replace_batch(n) for n in (1, 2, 3, 4)]
    failures = []

    def work(descriptor):
        bundles = [inputs.make_args(descriptor, seed=s) for s in range(4)]
        call = fast(module, descriptor, bundles[0])
        for i in range(300):
            if not call(bundles[i % 4], None, True):
                failures.append(i)

    threads = [threading.Thread(target=work, args=(d,)) for d in descriptors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
