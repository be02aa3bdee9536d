"""Faults planted in quantisation: the rounding direction and the layout of scales."""

from tests.mutation.mutant import cpu

BOUND = "tests/programs/test_bound.py"
VALID = "tests/families/quantize/test_valid_rows.py"
ZERO = "tests/families/quantize/test_zero_points.py"
C = "kernels/quantize/blocks.cuh"

FAULTS = (
    cpu(
        "quantise: rows of a block that are not valid enter its scale",
        C,
        "row + down < rows &&",
        "row + down < p.rows &&",
        f"{VALID} -k enter_a_scale",
    ),
    cpu(
        "quantise: a count beyond the rows of a matrix leaves all valid",
        C,
        "return counted <= p.rows ? counted : 0;",
        "return min(counted, p.rows);",
        f"{VALID} -k count_is_out_of_range",
    ),
    cpu(
        "bound: a power of two above an inexact number is certain",
        "opfacade/programs/jumps.py",
        "r = ((most - least) / 2).masked_fill(certain, 0.0)",
        "r = (0 * (most - least)).masked_fill(certain, 0.0)",
        BOUND,
    ),
    cpu(
        "quantise: the range of a zero point overflows before it is halved",
        "opfacade/plans/_quantize/quant.py",
        "top * 0.5 - bottom * 0.5",
        "(top - bottom) * 0.5",
        ZERO,
    ),
    cpu(
        "quantise: a range with a zero point leaves 0 outside",
        "opfacade/plans/_quantize/quant.py",
        'apply("minimum", low, 0.0), apply("maximum", high[0], 0.0)',
        "low, high[0]",
        ZERO,
    ),
    cpu(
        "quantise: one scale of all rows is made without its zero point",
        "opfacade/backends/cuda/folds/scaled_engine.py",
        "elif descriptor.quant.zero:",
        "elif False:",
        f"{ZERO} -k large_tensor",
    ),
)
