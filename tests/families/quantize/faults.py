"""Faults in quantisation: which way a scale is rounded, and in which layout scales lie."""

from tests.mutation.mutant import cpu

QUANT = "tests/families/quantize/test_reference.py"
KERNEL = "tests/families/quantize/test_quantize_kernel.py"
BOUND = "tests/programs/test_bound.py"

FAULTS = (
    cpu(
        "quantise: a scale of powers of two is rounded down",
        "opfacade/programs/reals.py",
        "exponent.long() - (part == 0.5).long() + 1023",
        "exponent.long() - 1 + 1023",
        QUANT,
    ),
    cpu(
        "quantise: a kernel rounds a scale of powers of two to the nearest",
        "kernels/common/stored.cuh",
        "above = (bits + 0x7fffffu) >> 23;",
        "above = (bits + 0x400000u) >> 23;",
        KERNEL,
    ),
    cpu(
        "quantise: a kernel has no least power of two",
        "kernels/common/stored.cuh",
        "if (static_cast<int32_t>(bits) <= 0x00400000) return 0;",
        "",
        "tests/families/elementwise/test_map_kernel.py -k powers_of_two",
    ),
    cpu(
        "quantise: elements are divided by the scale before it is rounded",
        "opfacade/plans/_quant.py",
        'return apply("round_f8_e8m0", found) if self.scale_dtype == "f8_e8m0" else found',
        "return found",
        QUANT,
    ),
    cpu(
        "bound: a power of two above an inexact number is certain",
        "opfacade/programs/jumps.py",
        "r = ((most - least) / 2).masked_fill(certain, 0.0)",
        "r = (0 * (most - least)).masked_fill(certain, 0.0)",
        BOUND,
    ),
)
