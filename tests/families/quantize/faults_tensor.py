"""Faults planted in quantisation with one scale for all rows: the maximum, its rows, the launch that writes the scale, and the
bits of the results."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/quantize/test_tensor_scale.py"
DEVICE = "kernels/reduction/scaled.cuh"
BINDING = "csrc/reduction/fold_scaled.cc.jinja"

FAULTS = (
    cpu(
        "tensor scale: it is of the sum before the norm",
        "opfacade/plans/_norm_program.py",
        "with_most(program_of(static), _weighted(static, normed))",
        "with_most(program_of(static), _weighted(static, _summed(static)[1]))",
        f"{KERNEL} -k then_quantize",
    ),
    cpu(
        "tensor scale: a kernel counts the first head of rows alone",
        DEVICE,
        "* (p.rows / p.size[0]);",
        "* 1;",
        f"{KERNEL} -k groups",
    ),
    cpu(
        "tensor scale: maxima of heads lie over each other",
        BINDING,
        "step *= p.size[axis--]",
        "axis--",
        f"{KERNEL} -k groups",
    ),
)
