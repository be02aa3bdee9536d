"""Paths of maps that only large problems take: several vectors per thread, and tiles with partial edges, in the emulator."""

from dataclasses import replace

import pytest
import torch

from opfacade.programs.expression import apply, value
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.elementwise.forms import X, Y, binary, unary
from tests.families.elementwise.test_map_kernel import filled, held

pytestmark = emulator.needed
GAP = 77  # the content between rows, which must not change
ENOUGH = 528 * 256  # the number of threads from which a thread takes several vectors


def padded(tensor, width, start=0, gap=GAP):
    """(the same values as part of wider rows, the whole memory)."""
    wide = torch.full((*tensor.shape[:-1], width), gap).to(tensor.dtype)
    view = wide[..., start : start + tensor.shape[-1]]
    return view.copy_(tensor), wide


def kept(wide, width, start=0):
    return bool((wide[..., :start] == GAP).all()) and bool((wide[..., start + width :] == GAP).all())


def checked(problem, args, width, start=0):
    """The output of a call that writes into part of wider rows, checked against the bound and against a call with one element
    per thread."""
    subject = emulator.subject(problem)
    out, wide = padded(args.out_0, width, start)
    held(subject, replace(args, out_0=out))
    assert kept(wide, args.out_0.shape[-1], start)
    return out


ROWS = {
    "bias": (binary(X + Y, (2122, 2051), ("bf16", "bf16"), (None, (1,)), "bf16"), 2064),
    "column": (binary(X * Y, (2200, 1024), ("f32", "f32"), (None, (0,))), 1028),
    "both": (binary(X * Y, (2100, 2056), ("bf16", "bf16"), ((0,), (1,)), "bf16"), 2064),
    "narrow": (binary(X + Y, (48001, 100), ("bf16", "bf16"), (None, (1,)), "bf16"), 104),
    "planes": (binary(X + Y, (7, 800, 780), ("bf16", "bf16"), (None, (1, 2)), "bf16"), 784),
    "planes_bias": (binary(X + Y, (7, 801, 780), ("bf16", "bf16"), (None, (0, 2)), "bf16"), 784),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_with_several_vectors_per_thread(name):
    problem, width = ROWS[name]
    args = filled(problem, 3)
    inner = problem.shape[-1]
    given = {name: getattr(args, name) for name in ("in_0", "in_1")}
    wide = {name: padded(one, width, gap=5)[0] for name, one in given.items() if one.shape[-1] == inner and one.ndim > 1}
    made = checked(problem, replace(args, **wide), width)
    other = checked(problem, args, width + 3, 1)  # unaligned vectors
    assert not bool(differs(made, other).any())


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize("more", [0, 1, 255 * 8 + 5, ENOUGH * 16 + 3])  # with the last size, CTAs have twice as many threads
def test_flat_tensors_with_several_vectors_per_thread(dtype, more):
    problem = unary(X * 2.0, (ENOUGH * 16 * (2 if dtype == "bf16" else 1) + more,), dtype)
    checked(problem, filled(problem, 4), problem.shape[0] + 9)


@pytest.mark.parametrize("shape", [(40,), (9, 40), (3, 5, 12), (ENOUGH * 16 + 40,), (2200, 1024), (9, 260, 1024)])
@pytest.mark.parametrize("valid", [0, 1, 2, 0.6])
def test_only_valid_rows_are_read_and_written(shape, valid):
    problem = unary(X * 2.0, shape, num_valid=True)
    count = int(valid * shape[0]) if valid == 0.6 else valid
    args = filled(problem, 5, valid=count)
    args.in_0.nan_to_num_(1.0)
    out, wide = padded(torch.full(shape, float(GAP)), shape[-1] + 4)
    emulator.subject(problem).run(replace(args, out_0=out))
    assert kept(wide, shape[-1])
    assert torch.equal(out[:count], args.in_0[:count] * 2)
    assert bool((out[count:] == GAP).all())


MANY = 256 * 8 * 132  # one thread computes eight of these elements, one CTA width apart
APART = {
    "one row": (binary(X + Y, (1, 9), ("bf16", "bf16"), out="bf16"), 1),
    "rows": (binary(X * Y, (44, 41), ("bf16", "f32"), out="f32"), 3),
    "a column and a row": (binary(X * Y, (5, 753), ("f16", "bf16"), ((0,), (1,)), "bf16"), 5),
    "bytes": (binary(X + Y, (67, 33), ("f32", "bf16"), (None, ()), "f8_e4m3"), 1),
    "many": (binary(X + Y, (MANY // 387 + 2, 387), ("bf16", "bf16"), (None, (1,)), "bf16"), 3),
    "many of one row": (unary(X * 2.0, (1, MANY + 5), "f16"), 1),
}


@pytest.mark.parametrize("name", APART)
def test_elements_of_unaligned_rows_have_the_bits_of_aligned_rows(name):
    problem, start = APART[name]
    args, width = filled(problem, 8), problem.shape[-1]
    whole = -(-width // 16) * 16
    names = [n for n in ("in_0", "in_1") if getattr(args, n) is not None and getattr(args, n).shape == problem.shape]
    apart = {n: padded(getattr(args, n), width + 7, start, 5)[0] for n in names}
    made = checked(problem, replace(args, **apart), width + 7, start)
    aligned = {n: padded(getattr(args, n), whole, gap=5)[0] for n in names}
    other = checked(problem, replace(args, **aligned), whole)
    assert not bool(differs(made, other).any())


TILES = {
    "halves": binary(X + Y, (70, 201), ("bf16", "f16"), out="bf16"),
    "words": binary(X * Y, (3, 136, 72), ("f32", "f32")),
    "bytes": unary(value("x", "u8") + 3, (100, 128), "u8"),
    "doubles": unary(value("x", "f64") * 2, (40, 66), "f64"),
    "mixed": binary(X + apply("f32", value("y", "i8")), (64, 65), ("f32", "i8"), out="bf16"),
    "whole": unary(X * 2.0, (128, 192), "bf16"),
}


def transposed(tensor, more, shift=0):
    """The same values with the last two axes exchanged in memory; columns begin at element `shift` of longer columns."""
    wide = torch.full((*tensor.shape[:-2], tensor.shape[-1], tensor.shape[-2] + more), 5).to(tensor.dtype)
    return wide[..., shift : shift + tensor.shape[-2]].mT.copy_(tensor)


@pytest.mark.parametrize("name", TILES)
@pytest.mark.parametrize(("more", "shift"), [(0, 0), (1, 1), (16, 0), (16, 8)])
def test_tiles_of_transposed_inputs_have_the_bits_of_contiguous_inputs(name, more, shift):
    problem = TILES[name]
    args, subject = filled(problem, 6), emulator.subject(problem)
    plain = torch.empty_like(args.out_0)
    subject.run(replace(args, out_0=plain))
    inputs = [("in_0",), ("in_1",), ("in_0", "in_1")] if args.in_1 is not None else [("in_0",)]
    for names in inputs:
        other = replace(args, **{name: transposed(getattr(args, name), more, shift) for name in names})
        for start in (0, 3):
            made = checked(problem, other, problem.shape[-1] + 16, start)
            assert not bool(differs(plain, made).any())


def test_a_transposed_input_together_with_an_input_with_gaps_gives_the_same_bits():
    problem = binary(X * Y, (70, 90), ("bf16", "bf16"), out="bf16")
    args = filled(problem, 7)
    gaps = torch.empty(70, 180, dtype=torch.bfloat16)[:, ::2].copy_(args.in_1)
    subject, plain = emulator.subject(problem), torch.empty_like(args.out_0)
    subject.run(replace(args, out_0=plain))
    made = checked(problem, replace(args, in_0=transposed(args.in_0, 2), in_1=gaps), 96)
    assert not bool(differs(plain, made).any())
    row = args.in_1[:1].expand(70, 90)
    checked(problem, replace(args, in_0=transposed(args.in_0, 2), in_1=row), 96)
    checked(problem, replace(args, in_0=transposed(args.in_0, 2), in_1=args.in_1[:, :1].expand(70, 90)), 96)
