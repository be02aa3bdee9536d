"""Faults in quantisation: which way a scale is rounded, and in which layout scales lie."""

from tests.mutation.mutant import cpu

QUANT = "tests/families/quantize/test_reference.py"
KERNEL = "tests/families/quantize/test_quantize_kernel.py"
BOUND = "tests/programs/test_bound.py"
BLOCKS = "tests/families/quantize/test_blocks.py"
VALID = "tests/families/quantize/test_valid_rows.py"
C = "kernels/quantize/blocks.cuh"

FAULTS = (
    cpu(
        "quantise: columns of scales are counted along the groups",
        "opfacade/core/operands.py",
        "axis = spec.valid_axis",
        "axis = 0",
        f"{VALID} -k not_valid_may_hold_anything",
    ),
    cpu(
        "quantise: what rounds a column of scales up is to be finite",
        "opfacade/plans/_named_fold.py",
        "max(0, size - real)).fill_(False)",
        "0).fill_(False)",
        f"{VALID} -k rounds_a_column",
    ),
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
        "quantise: a scale has no upper bound",
        "opfacade/plans/_quant.py",
        'most if self.most is None else apply("minimum", most, self.most)',
        "most",
        f"{QUANT} -k upper",
    ),
    cpu(
        "quantise: elements are divided by the scale before it is rounded",
        "opfacade/plans/_quant.py",
        'return apply("round_f8_e8m0", found) if self.scale_dtype == "f8_e8m0" else found',
        "return found",
        QUANT,
    ),
    cpu(
        "quantise: a quotient by the reciprocal is not corrected",
        "kernels/common/quotient.cuh",
        "return fabsf(rough) < 0x1p60f ? corrected(q, shifted) : rough;",
        "return rough;",
        f"{KERNEL} tests/families/kv_cache/test_quotient.py",
    ),
    cpu(
        "quantise: a quotient that is also stored in full has the last bits of an 8-bit one",
        "opfacade/backends/cuda/fold_printer.py",
        'uses[node] == 1 and node.op == "div"',
        'node.op == "div"',
        "tests/families/reduction/test_fold_kernel.py -k shared_quotient",
    ),
    cpu(
        "quantise: the last block of a row is a whole one",
        C,
        "min(int64_t{C::kColumns}, p.columns - column) - right",
        "int64_t{C::kColumns} - right",
        f"{BLOCKS} -k kernel",
    ),
    cpu(
        "quantise: blocks of the last rows are whole ones",
        C,
        "row + down < rows &&",
        "",
        f"{BLOCKS} -k kernel or past",
    ),
    cpu("quantise: a block has the scale of its row", C, "* p.scale_stride[1];", "* 0;", f"{BLOCKS} -k kernel"),
    cpu(
        "quantise: only the first warp of a block finds the largest",
        C,
        "join_warps<Most, kThreads / 32, 1>(join_lanes<Most, 32>(most), static_cast<int>(threadIdx.x) / 32, 0)",
        "join_lanes<Most, 32>(most)",
        f"{BLOCKS} -k kernel",
    ),
    cpu(
        "quantise: rows of a block that are not valid enter its scale",
        C,
        "row + down < rows &&",
        "row + down < p.rows &&",
        f"{VALID} -k enter_no_scale",
    ),
    cpu(
        "quantise: a block without a valid row has a scale",
        C,
        "quantise() {\n    if (C::kCounted && row >= rows) return;\n    fetch();\n    Most",
        "quantise() {\n    fetch();\n    Most",
        f"{VALID} -k valid_rows_and_leaves or touched",
    ),
    cpu(
        "quantise: a count beyond the rows of a matrix leaves all valid",
        C,
        "return counted <= p.rows ? counted : 0;",
        "return min(counted, p.rows);",
        f"{VALID} -k wrong_count",
    ),
    cpu(
        "quantise: one scale is that of all rows, also of those that are not valid",
        "opfacade/backends/cuda/quantize.py",
        "if descriptor.num_valid and descriptor.folds_rows():",
        "if False:",
        f"{VALID} -k enter_no_scale",
    ),
    cpu(
        "quantise: valid rows of a block that is not full are forgotten",
        "opfacade/plans/quantize.py",
        "return -(-rows // self.quant.block[0])",
        "return rows // self.quant.block[0]",
        f"{VALID} -k reference",
    ),
    cpu(
        "quantise: the harness lets a scale of a block without a valid row change",
        "opfacade/testing/families/quantize.py",
        "free[descriptor.valid_blocks(args) :] = True",
        "free[descriptor.valid_blocks(args) + 1 :] = True",
        f"{VALID} -k touched and reference",
    ),
    cpu(
        "quantise: vectors of a block are thought aligned",
        "csrc/quantize/_run.cc.jinja",
        "of.stride(1) == 1 && of.stride(0) * size % whole == 0 &&",
        "of.stride(1) == 1 &&",
        f"{BLOCKS} -k kernel",
        blind="vectors may lie anywhere in the memory of a CPU",
    ),
    cpu(
        "quantise: a block at an edge is filled with zeros for the reference",
        "opfacade/plans/quantize.py",
        ".clamp(max=tensor.shape[axis] - 1)",
        ".clamp(max=0)",
        BLOCKS,
    ),
    cpu(
        "quantise: a block is in texts that were made without one",
        "opfacade/plans/_quant.py",
        '{"block": self.block == _BLOCK, "most"',
        '{"block": False, "most"',
        BLOCKS,
    ),
    cpu(
        "bound: a power of two above an inexact number is certain",
        "opfacade/programs/jumps.py",
        "r = ((most - least) / 2).masked_fill(certain, 0.0)",
        "r = (0 * (most - least)).masked_fill(certain, 0.0)",
        BOUND,
    ),
)
