"""Maps whose rows begin at any address: the kernel uses whole vectors, computes the bits of aligned rows, and writes nothing
outside a row."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, jit
from opfacade.core.descriptor import operands_of
from opfacade.jit.sass import words
from opfacade.plans.activation import GatedActivationArgs, GatedActivationDescriptor
from opfacade.programs.expression import value
from opfacade.testing.families.elementwise import differs
from tests import emulator
from tests.families.elementwise.forms import X, Y, binary, unary
from tests.families.elementwise.test_map_kernel import filled, held

SM_90A = Target.parse("sm_90a")
PROBLEMS = {
    "halves": binary(X + Y, (3, 67), ("bf16", "bf16"), out="bf16"),
    "a bias": binary(X * Y, (5, 131), ("bf16", "f16"), (None, (1,)), "f16"),
    "a column": binary(X * Y, (5, 77), ("f32", "bf16"), (None, (0,)), "bf16"),
    "a wider result": unary(X * 2.0, (3, 61), "bf16", "f32"),
    "a narrower result": unary(X * 2.0, (3, 143), "f32", "f8_e4m3"),
    "bytes": unary(value("x", "u8") + 3, (3, 301), "u8"),
    "8 bytes": unary(value("x", "f64") * 2, (3, 71), "f64"),
    "planes": binary(X + Y, (2, 3, 45), ("bf16", "bf16"), (None, (1, 2)), "bf16"),
    "less than a vector": unary(X * 2.0, (9, 5), "bf16"),
    "a few vectors": unary(X * 2.0, (9, 31), "bf16"),
}
GAP, FROM = 0x5A, (0, 1, 3, 6)  # GAP fills the bytes around rows; FROM lists the elements before each row in a longer row
LOAD, STORE, SIZE_AT, SIXTEEN_BYTES = 0x981, 0x986, 73, 6


def apart(tensor, before):
    """(the tensor as parts of longer rows, the whole memory)."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 11, dtype=tensor.dtype)
    wide.view(torch.uint8).fill_(GAP)
    return wide[..., before : before + tensor.shape[-1]].copy_(tensor), wide


def nothing_beside(wide, before, width):
    beside = torch.cat([wide.view(torch.uint8)[..., : before * wide.element_size()],
                        wide.view(torch.uint8)[..., (before + width) * wide.element_size() :]], -1)  # fmt: skip
    return bool((beside == GAP).all())


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_unaligned_rows_have_the_bits_of_aligned_rows_and_nothing_outside_is_written(name):
    problem = PROBLEMS[name]
    subject, args = emulator.subject(problem), filled(problem, 5)
    plain = torch.empty_like(args.out_0)
    held(subject, replace(args, out_0=plain))
    width = problem.shape[-1]
    rows = [n for n in operands_of(problem) if n != "out_0" and getattr(args, n).shape[-1] == width]
    for before in FROM:
        out, wide = apart(args.out_0, before)
        for shift in (0, before, 5):  # inputs that are aligned, that have the alignment of the output, and that have another
            subject.run(replace(args, out_0=out, **{n: apart(getattr(args, n), shift)[0] for n in rows}))
            assert not bool(differs(plain, out).any())
            assert nothing_beside(wide, before, width)


@emulator.needed
@pytest.mark.parametrize("width", range(33, 50))
def test_contiguous_rows_of_every_width_equal_torch(width):
    problem = binary(X + Y, (7, width), ("bf16", "bf16"), (None, (1,)), "bf16")
    args = filled(problem, width)
    held(emulator.subject(problem), args)
    assert torch.equal(args.out_0, args.in_0 + args.in_1)


@emulator.needed
@pytest.mark.parametrize("valid", [0, 2, 5])
def test_invalid_rows_of_an_in_place_map_stay_unchanged(valid):
    problem = binary(X + Y, (5, 67), ("f16", "f16"), out="f16", in_place=(("z", "x"),), num_valid=True)
    args = filled(problem, 8, valid=valid)
    args.in_0.copy_(torch.arange(5 * 67).view(5, 67) % 91)
    args.in_1.fill_(2)
    wanted = args.in_0.clone()
    wanted[:valid] += 2
    emulator.subject(problem).run(args)
    assert torch.equal(args.in_0, wanted)


@emulator.needed
@pytest.mark.parametrize("width", [35, 67, 129])
def test_an_in_place_gated_activation_of_odd_width_leaves_the_second_half_unchanged(width):
    problem = GatedActivationDescriptor(total_num_rows=4, width=width, dtype="bf16", activation="relu2", in_place=True)
    x = (torch.arange(4 * 2 * width) % 13 - 6).view(4, 2 * width).to(torch.bfloat16)
    wanted = torch.cat([x[:, :width].float().relu().square() * x[:, width:].float(), x[:, width:].float()], -1)
    emulator.subject(problem).run(GatedActivationArgs(x=x))
    assert torch.equal(x.float(), wanted.to(torch.bfloat16).float())


@pytest.mark.parametrize("name", ["halves", "a bias"])
def test_the_kernel_for_unaligned_rows_uses_16_byte_accesses(name):
    plan = Plan.select(PROBLEMS[name], Preference(backend="cuda"), SM_90A)
    code, unroll = jit.build(plan.jit_spec).read_bytes(), dict(plan.jit_spec.params)["unroll"]
    found = Counter(
        word & 0xFFF
        for word in words.functions(code[code.index(b"\x7fELF", 1) :])["map_rows"]
        if word & 0xFFF in (LOAD, STORE) and word >> SIZE_AT & 7 == SIXTEEN_BYTES
    )
    # two inputs, each with aligned vectors and with both aligned chunks of an unaligned vector
    assert found[LOAD] >= 2 * unroll + 2 * 2
    assert found[STORE] >= unroll + 1
