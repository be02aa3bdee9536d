"""The benchmark of products with coded weights: its problems, and the content of a row."""

from unittest.mock import patch

import pytest

from bench import codes
from bench.codes import FORMATS, LAYERS, ROWS, Problem, bytes_of, problems, shown
from opfacade import Plan, Target
from opfacade.testing import inputs


def test_every_format_is_measured_for_few_and_many_rows():
    found = list(problems())
    assert len({one.name for one in found}) == len(found)
    assert {(one.format, one.rows) for one in found} == {(name, rows) for name in FORMATS for rows in ROWS}
    assert {one.layer for one in found} == set(LAYERS)


def test_bytes_are_those_of_codes_tables_rows_and_results():
    problem = Problem("8B o", "uint4 g128, rounded", 16)
    args = inputs.make_args(problem.descriptor, 1)
    assert bytes_of(args) == 4096 * 2048 + 4096 * 32 * (2 + 1) + 2 * 16 * (4096 + 4096)


def times(contenders, ways):
    return [one.row | {"us": {"median": us}} for one, us in zip(contenders, (10.0, 9.0, 25.0), strict=True)]


def few():
    return patch.dict(LAYERS, {"small": (64, 128)})


def test_a_row_has_the_floor_and_the_peers():
    def plan(descriptor):
        return Plan.select(descriptor, target=Target.cpu())

    make = inputs.make_args
    with (
        few(),
        patch.object(codes, "plan_of", plan),
        patch.object(codes.interleaved, "timed", times),
        patch.object(codes.inputs, "make_args", lambda d, seed, device: make(d, seed)),
        patch.object(codes, "DEVICE", "cpu"),
    ):
        row = codes.measured(Problem("small", "mxfp4", 2), 2.0)
    assert row["floor_us"] == pytest.approx(1.8, abs=0.05)
    assert (row["of_bf16"], row["of_cublas"]) == (0.9, 2.5)
    assert row["worst"] <= 1
    assert "10.0 us, bf16 9.0 (0.9), cuBLAS 25.0 (2.5)" in shown(row)


def test_a_wrong_result_is_not_timed():
    def wrong(descriptor):
        plan = Plan.select(descriptor, target=Target.cpu())

        class Wrong:
            sku = plan.sku

            def run(self, args):
                plan.run(args)
                args.out.add_(1)

        return Wrong()

    make = inputs.make_args
    with (
        few(),
        patch.object(codes, "plan_of", wrong),
        patch.object(codes.inputs, "make_args", lambda d, seed, device: make(d, seed)),
        pytest.raises(SystemExit, match="wrong result"),
    ):
        codes.measured(Problem("small", "mxfp4", 2), 2.0)
