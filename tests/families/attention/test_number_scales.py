"""Factors of fp8 tensors that are passed as numbers: they equal tensors with one element, and each value is created once per
device."""

from dataclasses import replace

import pytest
import torch

from opfacade import errors
from opfacade.core import device_tensors
from opfacade.testing import inputs
from tests.support.problems import append, cache, cloned, decode, on_reference, prefill, ragged

FP8 = {"paged_kv": cache(dtype="f8_e4m3"), "kv_scale": "tensor"}
CALLS = {
    "prefill": lambda: prefill([3, 2], [7, 2], q_dtype="f8_e4m3", q_scale="tensor", **FP8),
    "decode": lambda: decode([9, 0, 3], q_dtype="bf16", **FP8),
    "ragged": lambda: ragged([3, 2], [7, 2], dtype="f8_e4m3", q_scale="tensor"),
    "append": lambda: append([3, 2], [7, 2], new_dtype="bf16", **FP8),
}
NUMBERS = {"k_scale": 0.5, "v_scale": 2, "q_scale": 0.25}


def written(descriptor, args):
    on_reference(descriptor).run(args)
    return [getattr(args, name) for name, spec in descriptor.operands().items() if spec.written]


@pytest.mark.parametrize("call", CALLS)
def test_a_number_as_factor_equals_a_tensor_with_one_element(call):
    descriptor, args = CALLS[call]()
    numbers = {name: value for name, value in NUMBERS.items() if name in descriptor.operands()}
    assert numbers
    as_tensors = {name: torch.tensor([value], dtype=torch.float32) for name, value in numbers.items()}
    own = [written(descriptor, replace(cloned(args), **given)) for given in (numbers, as_tensors)]
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(*own, strict=True))


def test_calls_with_equal_factors_share_one_tensor_and_a_captured_graph_has_its_own(monkeypatch):
    _, args = CALLS["decode"]()
    one, other = replace(args, k_scale=0.5), replace(args, k_scale=0.5, v_scale=0.75)
    assert one.k_scale is other.k_scale
    assert float(other.v_scale) == 0.75
    monkeypatch.setattr(device_tensors, "capturing", lambda device: True)
    assert replace(args, k_scale=0.5).k_scale is not one.k_scale


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), 1e39, True])
def test_a_number_that_is_not_a_positive_finite_f32_is_refused(value):
    _, args = CALLS["decode"]()
    with pytest.raises(errors.ArgumentError, match=r"BatchPagedDecodeArgs: v_scale expected a positive finite f32.*OPF-A063"):
        replace(args, v_scale=value)


def test_a_number_is_refused_if_each_head_has_its_own_factor():
    descriptor, args = decode([9, 0, 3], q_dtype="bf16", **FP8 | {"kv_scale": "head"})
    verdict = on_reference(descriptor).can_implement(replace(args, k_scale=0.5))
    assert [issue.code for issue in verdict.issues] == ["OPF-A011"]


@pytest.mark.gpu
def test_on_a_gpu_the_tensor_of_a_factor_is_on_the_device_of_the_outputs():
    descriptor = CALLS["decode"]()[0]
    args = replace(inputs.make_args(descriptor, device="cuda"), k_scale=0.5)
    assert args.k_scale.device == args.o.device
