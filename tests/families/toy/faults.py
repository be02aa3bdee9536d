"""Faults planted in the reference and in the kernel of the toy family."""

from tests.mutation.mutant import Mutant

_HERE = "tests/families/toy"
_REFERENCE, _KERNEL = f"{_HERE}/backends/reference/toy.py", f"{_HERE}/kernels/toy/pick.cuh"

FAULTS = (
    Mutant(
        "toy: the factor is left out",
        _REFERENCE,
        (("x.float() * (gain * descriptor.factor)", "x.float() * gain"),),
        tests="tests/families/test_toy.py",
    ),
    Mutant(
        "toy: what is taken from the table has the wrong sign",
        _REFERENCE,
        (("out.copy_(x.float() + args.gain", "out.copy_(x.float() - args.gain"),),
        tests="tests/families/test_toy_operands.py",
    ),
    Mutant(
        "toy: the kernel writes rows that are not valid",
        _KERNEL,
        (("row >= counted || counted > p.rows", "counted > p.rows"),),
        tests="tests/families/test_toy_kernel.py",
    ),
)
