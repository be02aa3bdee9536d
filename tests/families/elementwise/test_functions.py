"""Functions over all their inputs: bounds of 16-bit and 8-bit types, errors of f32, and the constants that SKUs take from the
record."""

from unittest.mock import patch

import pytest
import torch

from opfacade import Plan, Preference
from opfacade.core.target import Target
from opfacade.plans.activation import GatedActivationDescriptor
from opfacade.programs import ulps
from opfacade.programs.expression import apply, constant
from opfacade.programs.types import NARROW
from opfacade.testing.families import _functions as functions
from opfacade.testing.subject import Subject
from tests import emulator

SPREAD = torch.cat([functions.patterns(dtype, "cpu").float()[::7] for dtype in ("f16", "bf16")])


def on_cpu(descriptor):
    return Subject(descriptor, "reference", "cpu")


@pytest.mark.parametrize("op", functions.APPLIED)
def test_the_reference_keeps_its_bound_on_all_values_of_narrow_types(op):
    found = list(functions.exhausted(on_cpu, True, [op]))
    assert [row.dtype for row in found] == list(NARROW)
    assert [row.inputs for row in found] == [65536, 65536, 256, 256]
    assert not [row.wrong for row in found if row.wrong]


@emulator.needed
@pytest.mark.parametrize("op", ["exp", "log1p", "rsqrt"])
def test_a_kernel_keeps_its_bound_on_all_bf16_values(op):
    found = functions.judged(emulator.subject, op, "bf16")
    assert not found.wrong
    assert 0 < found.worst <= 1


@emulator.needed
def test_the_error_is_measured_in_ulps_and_a_larger_one_than_documented_is_wrong():
    found = functions.measured(emulator.subject, "exp", [SPREAD[:5000], SPREAD[5000:]])
    assert not found.wrong
    assert 0.1 < found.ulps <= 2
    assert found.inputs == SPREAD.numel()
    rough = functions.measured(emulator.subject, "exp", [SPREAD], lambda x: apply("exp", x) * (1 + 2.0**-20))
    assert 7 < rough.ulps < 10
    assert "documented are 2.5" in rough.wrong[0]


@emulator.needed
def test_nan_instead_of_a_number_is_an_infinite_error_and_an_overflow_is_no_error():
    x = torch.tensor([1.0, 88.0, 89.0, 1e30, -float("inf"), float("inf"), float("nan"), -104.0])
    for inputs in (x, x[:2]):  # with and without a result that exceeds f32
        lost = functions.measured(emulator.subject, "exp", [inputs], lambda x: apply("exp", x) * 0.0 + constant("nan", "f32"))
        assert lost.ulps == float("inf")
    assert functions.measured(emulator.subject, "exp", [x]).ulps < 2


def test_a_constant_is_the_measured_error_rounded_up_but_at_most_the_documented_error():
    with patch("opfacade.programs.ulps.measured", lambda: (90, {"exp": 1.001, "log": 7.0})):
        assert ulps.ulps_of("exp", "f32", 90) == 1.015625
        assert ulps.ulps_of("log", "f32", 90) == 1.5
        assert ulps.ulps_of("tanh", "f32", 90) == 2.5


def test_a_documented_error_is_increased_by_half_an_ulp_of_rounding():
    """CUDA's tables compare with the correctly rounded result, so the error relative to the exact value may be half an ulp
    larger."""
    # measured on an H200 with 10^6 to 10^7 arguments; CUDA's tables state 1 ulp
    worst = {"tanh": 1.171, "log1p": 1.283, "expm1": 1.11}
    assert all(ulps.DEVICE[name][1] == 1 for name in worst)
    assert all(ulps.ulps_of(name, "f64", 80) >= 1.1 * error for name, error in worst.items())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_90a"])
def test_a_sku_uses_measured_errors_only_on_the_measured_architecture(arch):
    descriptor = GatedActivationDescriptor(total_num_rows=4, width=64, dtype="bf16", activation="gelu")
    sku = Plan.select(descriptor, Preference(backend="cuda"), Target.parse(arch)).sku
    errors = {name: ulp for name, ulp in sku.precision_guarantee.error_model.constants if name.startswith("ulp.")}
    documented = {name: ulps.documented(name.removeprefix("ulp."), "f32") for name in errors}
    assert errors
    assert (errors == documented) == (arch == "sm_80")


def test_only_rows_measured_over_all_inputs_are_used(tmp_path):
    place = tmp_path / "measured.json"
    row = '{"function": "%s", "dtype": "%s", "inputs": %d, "ulps": 1.5}'
    rows = f"{row % ('exp', 'f32', 2**32)}, {row % ('log', 'f32', 2**16)}, {row % ('sin', 'bf16', 2**32)}"
    place.write_text(f'{{"machine": {{"capability": "9.0"}}, "rows": [{rows}]}}')
    with patch.object(ulps.Path, "with_name", lambda self, name: place):
        assert ulps.measured.__wrapped__() == (90, {"exp": 1.5})


def test_no_measured_error_exceeds_the_documented_error():
    assert all(found <= ulps.documented(name, "f32") for name, found in ulps.measured()[1].items() if name in ulps.DEVICE)


@pytest.mark.gpu
@pytest.mark.parametrize("op", functions.APPLIED)
def test_a_gpu_keeps_its_bounds_on_all_values(op):
    def make(descriptor):
        return Subject(descriptor, "cuda", "cuda")

    assert not [row for row in functions.exhausted(make, False, [op]) if row.wrong]
    found = functions.measured(make, op, [SPREAD.cuda()])
    assert not found.wrong
    assert found.ulps <= ulps.ulps_of(op, "f32", Target.current().sm_version) if op in ulps.DEVICE else found.ulps <= 0.5
