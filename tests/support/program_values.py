"""Values that show edges, by type; tensors and scalars of the same numbers for the evaluation and for the oracle."""

import itertools
import math

import numpy as np
import torch

from opfacade.programs.evaluate import torch_type
from tests.support import naive_program

F32 = [
    0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, -3.0, 0.1, -7.25, 1e-45, -1e-40, 1.1754944e-38, 3.4028235e38,
    -3.4028235e38, 16777217.0, 300.0, -300.7, 65504.0, 65520.0, 448.0, 470.0, 1e6, 3e9, -3e9, 1e20, math.inf, -math.inf,
    math.nan, 0.49999997, 8388607.5, 6e-8, 3e-8, 57344.0, 61440.0, 2e-3, 1.0009765625, 1.00390625,
]  # fmt: skip
F64 = [*F32, 1e-320, 1e300, -1e308, 0.1 + 2**-60, 9007199254740993.0, 1.8446744073709552e19, 9.3e18, 1 + 2**-24 + 2**-50]


def of_type(kind):
    if kind == "bool":
        return [False, True]
    if kind in ("f32", "f64"):
        return [naive_program.FLOAT[kind](x) for x in (F32 if kind == "f32" else F64)]
    least, most = naive_program.bounds(kind)
    return sorted(
        {
            least,
            most,
            least + 1,
            most - 1,
            0,
            1,
            2,
            3,
            7,
            8,
            31,
            33,
            100,
            most // 2 + 1,
            *([-1, -2, -3, -7, -100] if least else []),
        }
    )


def tensor_of(numbers, kind):
    """The tensors that carry them."""
    if kind in ("f32", "f64", "bool"):
        return torch.from_numpy(np.array(numbers, dtype={"bool": bool}.get(kind, naive_program.FLOAT.get(kind))))
    return torch.tensor([n - 2**64 if n >= 2**63 else n for n in numbers], dtype=torch_type(kind))


def numbers_of(tensor, kind):
    """The other way."""
    found = tensor.tolist()
    if kind == "u64":
        return [n % 2**64 for n in found]
    return [naive_program.FLOAT[kind](n) for n in found] if kind in naive_program.FLOAT else found


def all_pairs(kinds):
    """Every combination of edge values of some types, as one list for each argument."""
    values = [of_type(kind) for kind in kinds]
    if kinds[0] == kinds[-1] == "u64" and len(kinds) == 4:
        values = [[0, 1, 2**63 + 5], [0, 2**64 - 1], [0, 1, 5, 2**40 + 2], [0, 7]]
    return [list(column) for column in zip(*itertools.product(*values), strict=True)]
