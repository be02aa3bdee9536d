"""Rows whose size is not a multiple of 16 bytes: kernels access whole vectors at any row start and give the bits of aligned
rows."""

import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
import torch

from opfacade import Plan, Preference, Target, jit
from opfacade.core.descriptor import operands_of
from opfacade.jit.sass import words
from tests import emulator
from tests.emulator.builds import FLAGS
from tests.families.reduction.forms import grouped, layer, quantised, reducer, rms, softmax
from tests.families.reduction.held import same_on_every_path
from tests.families.reduction.test_fold_kernel import filled, held

SM_90A = Target.parse("sm_90a")
PROBLEMS = {
    "lanes of a warp": softmax((5, 37), "f16"),
    "a warp": softmax((3, 333), "f16"),
    "more than a warp": softmax((2, 1335), "f16"),
    "4 bytes": rms((2, 1101), "f32"),
    "warps": rms((3, 1001), "bf16"),
    "two inputs in place": rms((3, 333), "bf16", residual=True),
    "another dtype of the weight": rms((2, 515), "f16", "f32"),
    "8 bytes": reducer("sum", "f64", (3, 71)),
    "1 byte": reducer("sum", "i8", (3, 301)),
    "8 bits out": quantised((2, 3, 129)),
    "groups": grouped((2, 3, 129)),
    "a cluster": softmax((1, 33001), "bf16"),
    "read again": layer((2, 9001)),
    "16 bits read again": softmax((2, 33001), "bf16"),
    "read again, and a piece more where a row begins late": softmax((1, 5 * 8192 - 1), "bf16"),
    "a weight of 16 bits, read again": rms((1, 33003), "f16"),
    "read once": reducer("argmax", "bf16", (2, 36001)),
}
ARCH = {name: "sm_80" for name in PROBLEMS if "read again" in name}  # a target without clusters
FROM = (0, 1, 3, 7)  # numbers of elements of other data before each row
GLOBAL_LOAD, GLOBAL_STORE, SIZE_AT, SIXTEEN_BYTES = 0x981, 0x986, 73, 6


def apart(tensor, before):
    """(the tensor as parts of longer rows, the whole memory)."""
    wide = torch.zeros(*tensor.shape[:-1], tensor.shape[-1] + 11, dtype=tensor.dtype)
    wide.view(torch.uint8).fill_(0x5A)
    return wide[..., before : before + tensor.shape[-1]].copy_(tensor), wide


@emulator.needed
@pytest.mark.parametrize("name", PROBLEMS)
def test_unaligned_rows_have_the_bits_of_aligned_rows_and_nothing_outside_is_written(name):
    problem = PROBLEMS[name]
    subject, args = emulator.subject(problem, arch=ARCH.get(name, "sm_90a")), filled(problem, 5)
    args.in_0.copy_(torch.randn(args.in_0.shape, generator=torch.Generator().manual_seed(2)))
    calls, places = [args], []
    for before in FROM:
        moved = {
            n: apart(getattr(args, n), before) for n in operands_of(problem) if getattr(args, n).ndim == len(problem.shape)
        }
        calls.append(replace(args, **{n: pair[0] for n, pair in moved.items()}))
        places += [(pair[1], before, pair[0].shape[-1]) for pair in moved.values()]
    same_on_every_path(subject, args, calls)
    for wide, before, width in places:
        beside = torch.cat([wide[..., :before], wide[..., before + width :]], -1).contiguous().view(torch.uint8)
        assert bool((beside == 0x5A).all())


@emulator.needed
@pytest.mark.parametrize("width", range(1, 40, 2))
def test_the_narrowest_rows_of_odd_width_keep_their_bound(width):
    for problem in (softmax((9, width), "f16"), quantised((3, 3, width))):
        held(emulator.subject(problem), filled(problem, width))


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_no_byte_outside_a_tensor_is_read(tmp_path):
    made, source = tmp_path / "vectors", emulator.ROOT / "tests/emulator/vectors_anywhere.cc"
    flags = [flag for flag in FLAGS if not flag.startswith("-O")]
    paths = [f"-I{emulator.ROOT}/tests/emulator", f"-I{emulator.ROOT}"]
    runtime = emulator.ROOT / "tests/emulator/simt.cc"
    command = ["g++", *flags, "-O0", "-fsanitize=address", *paths, "-o", str(made), str(source), str(runtime)]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    done = subprocess.run([made], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "0 elements are wrong\n"), done.stderr[:2000]


@pytest.mark.parametrize("problem", [softmax((9, 1333), "f16"), rms((9, 4097), "bf16", residual=True)], ids=["softmax", "rms"])
def test_the_kernel_for_unaligned_rows_uses_16_byte_accesses(problem):
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    code = jit.build(plan.jit_spec).read_bytes()
    found = Counter(
        word & 0xFFF
        for word in words.functions(code[code.index(b"\x7fELF", 1) :])["fold_dense"]
        if word & 0xFFF in (GLOBAL_LOAD, GLOBAL_STORE) and word >> SIZE_AT & 7 == SIXTEEN_BYTES
    )
    streams = len(plan.descriptor.inputs)
    pieces = dict(plan.jit_spec.params)["pieces"]
    assert found[GLOBAL_LOAD] >= 2 * pieces * streams
    assert found[GLOBAL_STORE] >= pieces


@pytest.mark.parametrize(
    ("problem", "shifted"),
    [
        (softmax((9, 127), "f32"), False),
        (softmax((9, 17), "f16"), False),
        (reducer("sum", "bf16", (2, 50257)), False),
        (softmax((9, 333), "f16"), False),
        (softmax((9, 1333), "f16"), True),
        (softmax((9, 5003), "f32"), False),
        (rms((9, 5003), "f32"), True),
        (reducer("sum", "f32", (9, 336)), True),
    ],
)
def test_vectors_are_shifted_where_that_is_faster(problem, shifted):
    plan = Plan.select(problem, Preference(backend="cuda"), SM_90A)
    assert dict(plan.jit_spec.params).get("shifts", True) is shifted
