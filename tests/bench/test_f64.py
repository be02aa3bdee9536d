"""The measurement of f64 functions: arguments, the screening, mpmath, a record, and the constants derived from it."""

import argparse
import json
import math
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import mpmath
import pytest
import torch

from bench import f64, f64_oracle, functions
from opfacade.programs import ulps
from opfacade.programs.evaluate import Evaluation, Values
from opfacade.programs.expression import apply
from opfacade.programs.operations import BINARY_FUNCTIONS, FUNCTIONS
from tests import emulator

COUNT = 400


class Plain:
    """A pool of processes that runs everything in this process."""

    def map(self, function, jobs, chunksize=1):
        return map(function, jobs)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    with ThreadPoolExecutor(1) as threads:
        yield f64.Judge(f64.built(tmp_path_factory.mktemp("screen")), threads, Plain())


@emulator.needed
@pytest.mark.parametrize("name", FUNCTIONS)
def test_screen_and_mpmath_agree_and_the_libraries_of_this_machine_err_little(judge, name):
    found = f64.Found(name)
    columns = f64.arguments(name, COUNT, 5)
    node = apply(name, *(f64.value(one, "f64") for one in "xy"[: len(columns)]))
    got = Evaluation(Values({("input", n): c for n, c in zip("xy", columns, strict=False)})).own(node)
    judge.add(found, columns, got)
    assert found.apart < f64.AGREED, found
    assert found.inputs == COUNT
    assert found.judged >= f64.SPOTS


@emulator.needed
def test_an_error_of_half_a_thousand_units_is_found_and_is_wrong(judge):
    for name in ("exp", "bessel_j0", "pow"):
        columns = f64.arguments(name, COUNT, 6)
        with mpmath.workdps(60):
            real = [f64_oracle.REAL[name](*map(mpmath.mpf, one)) for one in zip(*(c.tolist() for c in columns), strict=True)]
        right = torch.tensor([float(one) for one in real], dtype=torch.float64)
        fine, rough = f64.Found(name), f64.Found(name)
        judge.add(fine, columns, right)
        assert judge.close(fine).wrong == ""
        assert fine.ulps <= 0.51
        judge.add(rough, columns, right * (1 + (2.0**-25 if name == "bessel_j0" else 2.0**-40)))
        assert "documented are" in judge.close(rough).wrong
        lost = f64.Found(name)
        judge.add(lost, columns, right * math.nan)
        assert lost.ulps == math.inf


def test_values_far_out_are_known_where_mpmath_has_none():
    for far in (1e7, 9.9e7, 1.1e8, 1e9):
        with mpmath.workdps(60):
            real = float(mpmath.exp(mpmath.mpf(far) ** 2) * mpmath.erfc(far))
        assert f64_oracle.units("erfcx", (far,), real, 0.0) <= 0.5, far
    for far in (30.0, 1e8, 1e155, 1.7e308):
        assert f64_oracle.units("erfc", (far,), 0.0, 0.0) == 0
        assert f64_oracle.units("erfc", (far,), 1e-300, 0.0) > 64
        assert f64_oracle.units("erfc", (-far,), 2.0, 0.0) == 0
    assert f64_oracle.units("erfcx", (1e300,), 1e-300 / 1.7724538509055160273, 0.0) <= 1
    assert f64_oracle.units("erfcx", (1e300,), 1e-300, 0.0) > 64


def test_arguments_are_inside_the_domain_dense_beside_points_and_the_same_each_time():
    for name in FUNCTIONS:
        known, columns = f64_oracle.RANGES[name], f64.arguments(name, 4000, 1)
        assert len(columns) == 1 + (name in BINARY_FUNCTIONS)
        assert all(torch.equal(a, b) for a, b in zip(columns, f64.arguments(name, 4000, 1), strict=True))
        x = columns[0]
        assert not bool(x.isnan().any())
        assert bool(((x >= known.least) & (x <= known.most)).all()), name
        for point in known.points[:2]:
            near = (x - point).abs() <= 2.0**-30 * max(abs(point), 2.0**-20)
            assert int(near.sum()) > 4000 / 4 / len(known.points) / 4, (name, point)


@emulator.needed
def test_a_kernel_is_measured_in_chunks(judge):
    with patch.object(f64, "CHUNK", 150):
        (found,) = f64.measured(emulator.subject, judge, 400, 60.0, ["rsqrt"])
        (cut,) = f64.measured(emulator.subject, judge, 400, 0.0, ["rsqrt"])
    assert found.inputs == 400
    assert cut.inputs == 150
    assert 0 < found.ulps < 1.5
    assert not found.wrong


def test_a_record_keeps_what_was_not_measured_again(tmp_path):
    place = tmp_path / "measured.json"
    place.write_text(
        json.dumps({"date": "d", "machine": {}, "rows": [{"function": "exp"}], "f64": {"rows": [{"function": "sin"}]}})
    )
    words = argparse.Namespace(f64=True, only=["cos"], commit="c")
    with patch.object(functions, "machine", lambda device: {}):
        new = functions.merged(place, [{"function": "cos"}], words)
        assert [row["function"] for row in new["f64"]["rows"]] == ["sin", "cos"]
        assert new["rows"] == [{"function": "exp"}]
        whole = functions.merged(place, [{"function": "log"}], argparse.Namespace(f64=False, only=None, commit="c"))
        assert [row["function"] for row in whole["rows"]] == ["log"]
        assert whole["f64"]["rows"] == [{"function": "sin"}]


def test_the_record_has_every_function_and_constants_exceed_its_errors():
    version, errors = ulps.measured_f64()
    assert version == 90
    assert set(errors) == set(FUNCTIONS)
    for name, error in errors.items():
        assert ulps.ulps_of(name, "f64", 90) >= min(error + 0.2, ulps.documented(name, "f64")), name
        assert ulps.documented(name, "f64") > 1.1 * error, name


def test_a_constant_of_f64_is_a_whole_number_of_units_and_of_enough_arguments_alone(tmp_path):
    place = tmp_path / "measured.json"
    row = '{"function": "%s", "dtype": "f64", "inputs": %d, "ulps": %s}'
    rows = ", ".join(
        row % one
        for one in (
            ("tan", 10**7, 1.2),
            ("lgamma", 10**7, 2.3),
            ("sin", 10**6, 0.6),
            ("cos", 10**7, 7.0),
            ("exp2", 10**7, 0.99),
        )
    )
    place.write_text(
        f'{{"machine": {{"capability": "9.0"}}, "rows": [], "f64": {{"machine": {{"capability": "9.0"}}, "rows": [{rows}]}}}}'
    )
    with patch.object(ulps.Path, "with_name", lambda self, name: place):
        read = ulps.measured_f64.__wrapped__()
    with patch.object(ulps, "measured_f64", lambda: read):
        assert [ulps.ulps_of(name, "f64", 90) for name in ("tan", "lgamma", "sin", "cos")] == [2, 3, 2.5, 2.5]
        assert ulps.ulps_of("exp2", "f64", 90) == 1.5  # not 1, which another sample may exceed
        assert ulps.ulps_of("lgamma", "f64", 80) == 4.5
