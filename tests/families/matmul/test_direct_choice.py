"""The choice between tiles of mma.sync and of wgmma: close to the fastest that was measured; wgmma for operands of TMA."""

import pytest

from opfacade import Plan, Preference, Target, explain
from opfacade.backends.cuda.matmul import CANDIDATES, direct_choice
from opfacade.backends.cuda.matmul.direct_choice import choice
from opfacade.plans.matmul import MatmulDescriptor
from tests.support.assemblers import any_assembler

SM_90A = Target.parse("sm_90a")
# Microseconds on an H200 with a cold L2: (rows, n, k) -> time by tiles of wgmma, and of each measured tile by mma.sync.
# a8, a16: warps with one segment of k each.
MEASURED = {
    (1, 482, 6922): {"wgmma": 14.8, "8x32": 40.4, "8x64": 45.6, "a8": 12.0},
    (1, 2992, 6399): {"wgmma": 37.2, "8x32": 38.8, "8x64": 48.4},
    (1, 5424, 1468): {"wgmma": 19.1, "8x32": 14.0, "8x64": 14.4},
    (1, 1832, 13481): {"wgmma": 53.0, "8x32": 74.8, "8x64": 95.5},
    (1, 16, 13935): {"wgmma": 11.3, "8x32": 87.4, "8x64": 102.3, "a8": 19.6},
    (2, 7024, 153): {"wgmma": 11.8, "8x32": 7.8, "8x64": 7.8},
    (3, 14832, 65): {"wgmma": 14.6, "8x32": 10.0, "8x64": 7.4},
    (3, 3408, 141): {"wgmma": 9.7, "8x32": 7.3, "8x64": 7.5},
    (4, 5744, 18): {"wgmma": 8.1, "8x32": 6.4, "8x64": 6.4},
    (5, 496, 4830): {"wgmma": 13.3, "8x32": 29.9, "8x64": 33.6, "a8": 12.4},
    (16, 2212, 130): {"wgmma": 9.6, "16x32": 7.2, "16x64": 7.6},
    (16, 3664, 1923): {"wgmma": 22.0, "16x32": 19.5, "16x64": 21.7},
    (16, 4736, 1623): {"wgmma": 22.4, "16x32": 23.9, "16x64": 19.2},
    (16, 272, 1514): {"wgmma": 9.6, "16x32": 13.6, "16x64": 14.7},
    (23, 2160, 2660): {"wgmma": 19.6, "32x32": 22.8, "32x64": 26.2},
    (31, 348, 11122): {"wgmma": 17.4, "32x32": 80.2, "32x64": 96.3, "a16": 26.0},
    (48, 6860, 2108): {"wgmma": 34.1, "32x64": 41.8, "64x64": 30.0},
    (55, 301, 2541): {"wgmma": 11.3, "32x64": 36.4, "64x64": 50.0, "a16": 19.7},
    (80, 6512, 11164): {"wgmma": 138.7, "32x64": 256.4, "64x64": 246.2},
    (2940, 1219, 17): {"wgmma": 14.1, "32x64": 54.5, "64x64": 36.0},
    (3191, 96, 10359): {"wgmma": 105.1, "32x64": 245.4, "64x64": 180.9},
    (4208, 48, 996): {"wgmma": 17.0, "32x64": 15.3, "64x64": 18.0},
}
BY_WGMMA = [(rows, n, k) for rows, n, k in MEASURED if MEASURED[rows, n, k]["wgmma"] == min(MEASURED[rows, n, k].values())]


@pytest.fixture(autouse=True)
def _any_assembler():
    with any_assembler():
        yield


def made(rows, n, k, **more):
    return MatmulDescriptor(**({"total_num_rows": rows, "n": n, "k": k, "dtype": "bf16"} | more))


def named(shape):
    if shape is None:
        return "wgmma"
    return f"a{shape.rows}" if shape.along > 1 else f"{shape.rows}x{shape.columns}"


@pytest.mark.parametrize("sizes", MEASURED, ids=str)
def test_the_choice_is_close_to_the_fastest_that_was_measured(sizes):
    times = MEASURED[sizes]
    assert times[named(choice(made(*sizes), SM_90A))] <= 1.05 * min(times.values())


def test_both_kernels_are_chosen():
    assert 5 <= len(BY_WGMMA) <= len(MEASURED) - 10


@pytest.mark.parametrize(("rows", "n", "k"), [(1, 96, 168), (4, 5744, 16), (1, 2992, 6400), (64, 3536, 3888)])
def test_operands_that_tma_loads_have_tiles_of_wgmma(rows, n, k):
    problem = made(rows, n, k)
    assert choice(problem, SM_90A) is None
    found = explain(problem, target=SM_90A, prefer=Preference(backend="cuda"))
    refused = next(one for one in found.options if one.candidate.impl == "mma_direct")
    assert [(one.code, one.field) for one in refused.reasons] == [("OPF-S003", "sizes for which mma.sync is faster than wgmma")]
    assert found.chosen.candidate.impl == "wgmma_tile"


def test_a_limit_of_sms_and_a_batch_count():
    """Each CTA of an SM takes time, while copies for TMA are paid once."""
    assert named(choice(made(1, 5424, 1468), SM_90A)) == "8x32"
    assert choice(made(1, 5424, 1468, sm_limit=4), SM_90A) is None
    one = direct_choice.nanoseconds(direct_choice.BESIDE[0], (8, 1000, 129, 1), 132)
    assert direct_choice.nanoseconds(direct_choice.BESIDE[0], (8, 1000, 129, 40), 132) > 5 * one


def test_no_workspace_is_needed():
    assert Plan.select(made(4, 5744, 18), Preference(backend="cuda"), SM_90A).workspace_size == 0


@pytest.mark.parametrize("rows", [1, 5, 64, 65, 4096])
def test_rows_change_no_refusal_of_operands_that_tma_loads(rows):
    candidate = next(one for one in CANDIDATES if one.impl == "mma_direct")
    problem = made(rows, 96, 7168)
    by_rows = candidate.by_rows(made(1, 96, 7168), SM_90A)
    assert by_rows(rows) == by_rows(1)
    assert candidate.declines(problem, SM_90A)
    assert candidate.by_rows(made(1, 96, 7167), SM_90A) is None
