"""Bounds on values: the device's rules, compiled for a block of one thread, against the host's; and the guard that launches
them.
"""

import ctypes
import math
import random
import subprocess
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opfacade import Plan, Target, env, jit, validation
from opfacade.core.dtypes import torch_dtype
from opfacade.errors import IndexDataError
from opfacade.jit import JitSpec
from opfacade.plans.rotary import RotaryDescriptor
from opfacade.testing import inputs
from opfacade.validation import device, device_values, values
from opfacade.validation.values import Bounded
from tests.families.mount import mounted

SHIM = r"""
#define OPF_DEVICE static inline
#include "kernels/validation/value_rules.h"
struct HostBlock {
  static constexpr int kLanes = 1;
  static int lane() { return 0; }
  static int64_t min(int64_t x) { return x; }
};
extern "C" int64_t check_one(const opfacade::BoundedOperand* operand, int64_t* value) {
  const opfacade::OutsideValue found = opfacade::check_values<HostBlock>(*operand);
  *value = found.value;
  return found.position;
}
"""
INTEGERS = [torch_dtype(name) for name in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")]


class COperand(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("origin", "safe", "valid")),
        *((name, ctypes.c_int64) for name in ("first", "stop", "elements", "rows", "row_elements")),
        *((name, ctypes.c_int64 * 6) for name in ("size", "stride")),
        *((name, ctypes.c_int32) for name in ("rank", "bytes")),
        ("is_signed", ctypes.c_bool),
    )


@pytest.fixture(scope="module")
def check_one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("values")
    (folder / "shim.cc").write_text(SHIM)
    command = [env.cxx(), "-std=c++17", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover", "-Wall", "-Wextra", "-Werror"]
    paths = ["-shared", "-fPIC", "-I", str(jit.source_root()), str(folder / "shim.cc"), "-o", str(folder / "shim.so")]
    subprocess.run([*command, *paths], check=True)
    found = ctypes.CDLL(str(folder / "shim.so")).check_one
    found.restype = ctypes.c_int64
    return found


def pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def on_device(check_one, given, safe, valid, first, stop, axis=0):
    """(position, value) as the device would report them; position -1 if all values are valid."""
    pad = [0] * (6 - given.dim())
    rows = given.shape[axis] if given.dim() else 0
    operand = COperand(
        pointer(given), pointer(safe), pointer(valid), first, stop, given.numel(), rows, math.prod(given.shape[axis + 1 :]),
        (ctypes.c_int64 * 6)(*given.shape, *pad), (ctypes.c_int64 * 6)(*given.stride(), *pad),
        given.dim(), given.element_size(), given.dtype.is_signed,
    )  # fmt: skip
    value = ctypes.c_int64()
    return check_one(ctypes.byref(operand), ctypes.byref(value)), value.value


@pytest.mark.parametrize("seed", range(60))
def test_the_device_finds_what_the_host_finds(check_one, seed):
    rng = random.Random(seed)
    dtype, shape = rng.choice(INTEGERS), rng.choice([(), (7,), (5, 3), (4, 2, 3)])
    first, stop = rng.choice([(0, 5), (-1, 5), (0, 1)]) if dtype.is_signed else (0, 5)
    wide = torch.randint(
        first, stop, (*shape[:-1], 2 * shape[-1]) if shape else (), generator=torch.Generator().manual_seed(seed)
    )
    given = wide.to(dtype)[..., ::2] if shape else wide.to(dtype)
    for _ in range(rng.choice((0, 0, 1, 3)) if shape else 0):
        given[tuple(rng.randrange(n) for n in shape)] = torch.tensor(
            rng.choice((stop, torch.iinfo(dtype).max, torch.iinfo(dtype).min or stop)), dtype=dtype
        )
    count, axis = rng.choice((None, -1, 0, 2, 4, 2**31 - 1)) if shape else None, rng.randrange(max(1, len(shape)))
    valid = None if count is None else torch.tensor([count], dtype=torch.int32)
    args = SimpleNamespace(x=given, n=valid)
    want = list(values.findings([Bounded("x", first, stop, "n" if valid is not None else "", False, axis=axis)], args))
    safe = torch.full(given.shape, 77, dtype=dtype)
    position, value = on_device(check_one, given, safe, valid, first, stop, axis)
    assert (position, value) == ((want[0].position, want[0].value) if want else (-1, 0))
    rows = given.shape[axis] if shape else 0
    read = rows if count is None else count if 0 <= count <= rows else 0
    sound = given
    told = values.signed(given)
    inside = (told >= first) & (told < stop)
    if shape:
        inside.narrow(axis, read, rows - read).fill_(False)
        sound = torch.where(inside, told, torch.full_like(told, first)).to(dtype)
    assert torch.equal(safe, sound)


def test_large_unsigned_values_are_as_large_as_they_are(check_one):
    given = torch.tensor([0, 150, 199, 255], dtype=torch.uint8)
    assert on_device(check_one, given, None, None, 0, 200) == (3, 255)
    assert on_device(check_one, given, None, None, 0, 256) == (-1, 0)
    assert on_device(check_one, given.to(torch.uint16), None, None, 0, 200) == (3, 255)


@pytest.mark.parametrize(("name", "value", "told"), [("u16", 2**16 - 1, 2**16 - 1), ("u32", 2**32 - 1, 2**32 - 1),
                                                     ("u64", 2**64 - 1, 2**63 - 1), ("i64", -(2**63), -(2**63))])  # fmt: skip
def test_the_host_says_the_value_of_any_integer_type(name, value, told):
    given = torch.tensor([1, value], dtype=torch_dtype(name))
    (found,) = values.findings([Bounded("x", 0, 9, "", False)], SimpleNamespace(x=given))
    assert (found.position, found.value) == (1, told)


class HostModule:
    """The binding's `run`, on the host."""

    def __init__(self, check_one):
        self.check_one, self.launches = check_one, 0

    def run(self, given, safe, valid, state, address, first, stop, axis, place):
        self.launches += 1
        position, value = on_device(self.check_one, given, safe, valid, first, stop, axis)
        ring = device.Ring.from_address(address)
        if position >= 0:
            low, high = ctypes.c_int32(value & 2**32 - 1).value, value >> 32
            claimed = int(state[0])
            ring.records[claimed % device.RECORDS] = device.Record(
                claimed + 1, values.OUTSIDE, place, 0, low, position, high, int(state[1])
            )
            state[0] += 1
        state[1] += 1


@pytest.fixture
def guard_of(monkeypatch, check_one):
    """Creates the guard of a descriptor's plan, and records its calls."""

    def channel(index):
        made = object.__new__(device.Channel)
        made.device, made.captured, made._lock = index, False, threading.Lock()
        made.memory = torch.zeros(ctypes.sizeof(device.Ring), dtype=torch.uint8)
        made.state, made.ring = torch.zeros(3, dtype=torch.int32), device.Ring.from_address(made.memory.data_ptr())
        return made

    module = HostModule(check_one)
    monkeypatch.setattr(device, "_take", channel)
    monkeypatch.setattr(device.moment, "refuse_capture", lambda *args: None)
    monkeypatch.setattr(jit, "load", lambda spec, allow_build: module)

    def made(descriptor):
        bounded, calls = values.bounded_of(descriptor), []
        sku = Plan.select(descriptor, target=Target.cpu()).sku.model_copy(update={"arch": "sm_90a"})
        guard = device_values.DeviceValueGuard(descriptor.op, bounded, sku, True)
        launch = guard.wrap(lambda args, workspace: calls.append(args))
        return SimpleNamespace(
            guard=guard, run=lambda args: launch(args, None), calls=calls, descriptor=descriptor, module=module
        )

    return made


@pytest.fixture
def guarded(guard_of):
    """A guard of a toy's plan."""
    with mounted("toy") as toy:
        yield guard_of(toy.PickDescriptor(rows=9, width=4, entries=5, dtype="f16", num_valid=True))


def test_an_operator_gets_copies_without_wrong_values_and_the_next_call_tells(guarded):
    args = inputs.make_args(guarded.descriptor, seed=1, lengths=inputs.DrawnLengths(valid=6))
    guarded.run(args)
    guarded.guard.check()
    args.index[4], args.index[7] = 2**31 - 1, -5
    guarded.run(args)
    first, second = guarded.calls
    assert second.index.tolist() == [*args.index[:4].tolist(), 0, int(args.index[5]), 0, 0, 0]
    assert first.index.tolist()[:4] == second.index.tolist()[:4]
    assert second.num_valid.tolist() == [6]
    assert second.x is args.x
    with pytest.raises(
        IndexDataError, match=r"index\[4\] expected a value in \[0, 5\), got 2147483647 \(found on the device"
    ) as caught:
        guarded.guard.check()
    assert (caught.value.asynchronous, caught.value.call_id, caught.value.position) == (True, 1, 4)
    guarded.guard.check()
    assert guarded.module.launches == 4


def test_a_wrong_count_leaves_no_row_valid(guarded):
    args = inputs.make_args(guarded.descriptor, seed=1, lengths=inputs.DrawnLengths(valid=6))
    args.num_valid.fill_(10)
    guarded.run(args)
    assert guarded.calls[0].num_valid.tolist() == [0]
    assert guarded.calls[0].index.tolist() == [0] * 9
    with pytest.raises(IndexDataError, match=r"num_valid\[0\] expected a value in \[0, 10\), got 10"):
        guarded.run(args)
    assert len(guarded.calls) == 1


@pytest.mark.parametrize(("valid", "row", "column"), [(3, 1, 3), (3, 0, 4), (0, 2, 0)])
def test_rows_of_a_later_axis_that_are_not_valid_may_hold_anything(guard_of, valid, row, column):
    """positions [sections, rows] of a rotation: the device counts its rows along axis 1."""
    sizes = {"num_qo_heads": 2, "num_kv_heads": 1, "head_dim": 16, "rotary_dim": 16}
    rotation = guard_of(RotaryDescriptor(total_num_rows=5, dtype="f16", sections=(3, 3, 2), num_valid=True, **sizes))
    args = inputs.make_args(rotation.descriptor, seed=1, lengths=inputs.DrawnLengths(valid=valid))
    args.positions.fill_(2)
    args.positions[row, column] = 2**40
    rotation.run(args)
    rotation.guard.check()
    assert rotation.calls[0].positions.tolist() == [[2] * valid + [-1] * (5 - valid)] * 3
    args.num_valid.fill_(column + 1)
    rotation.run(args)
    with pytest.raises(IndexDataError, match=rf"positions\[{5 * row + column}\] expected a value"):
        rotation.guard.check()
    assert rotation.calls[1].positions[row].tolist() == [2] * column + [-1] * (5 - column)


def test_levels_have_the_guard_of_their_backend():
    with mounted("toy") as toy:
        descriptor = toy.PickDescriptor(rows=9, width=4, entries=5, dtype="f16")
        host = Plan.select(descriptor, target=Target.cpu()).sku
        on_gpu = host.model_copy(update={"backend": "cuda"})
        kinds = {
            level: type(validation.guard(level, descriptor, host, True)).__name__ for level in ("metadata", "indices", "full")
        }
        assert kinds == {"metadata": "NoneType", "indices": "ValueGuard", "full": "FullGuard"}
        assert type(validation.guard("indices", descriptor, on_gpu, True)) is device_values.DeviceValueGuard
        assert validation.guard("indices", toy.ScaleDescriptor(rows=1, width=4, dtype="f16"), on_gpu, True) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", INTEGERS)
def test_the_kernel_finds_what_the_host_finds(dtype):
    module = jit.load(JitSpec.of("value_check", "validation/value_check", Target.current().arch))
    channel = device._take(torch.cuda.current_device())
    generator = torch.Generator("cuda").manual_seed(1)
    for seed in range(20):
        given = torch.randint(0, 5, (3000, 7), generator=generator, device="cuda").to(dtype)[:, ::2]
        if seed % 3:
            given[seed * 100 :, 1] = 5
        axis = seed // 4 % 2
        given = given.T if axis else given
        valid = torch.tensor([(3000, 900, 0, 4000)[seed % 4]], dtype=torch.int32, device="cuda")
        safe = torch.full(given.shape, 77, dtype=dtype, device="cuda")
        module.run(given, safe, valid, channel.state, channel.memory.data_ptr(), 0, 5, axis, 3)
        torch.cuda.synchronize()
        want = list(values.findings([Bounded("x", 0, 5, "n", False, axis=axis)], SimpleNamespace(x=given, n=valid)))
        found = channel.drain()
        assert [(f.position, f.value, f.limit, f.place, f.call) for f in found] == [
            (w.position, w.value, 0, 3, seed) for w in want
        ]
        read = int(valid) if int(valid) <= 3000 else 0
        host = given.cpu().numpy()
        made, host = (np.moveaxis(found, axis, 0) for found in (safe.cpu().numpy(), host))
        assert (made[:read] == np.where(host < 5, host, 0)[:read]).all()
        assert not made[read:].any()
