"""Faults planted in rotations: in the kernel, the program, the reference and the tables."""

from tests.mutation.mutant import Mutant

_KERNEL, _TESTS = "kernels/rotary/rotary.cuh", "tests/families/rotary/test_rotary_kernel.py"
_ANGLES, _REFERENCE = "kernels/rotary/angles.cuh", "tests/families/rotary/test_reference.py"
_PREPARE, _PREPARED = "kernels/rotary/qkv_prepare.cuh", "tests/families/rotary/test_qkv_prepare.py"
_TABLE, _TABLES = "opfacade/plans/_rotary_table.py", "tests/families/rotary/test_table.py"

FAULTS = (
    Mutant(
        "rotary: positions of sections are counted along the sections",
        "opfacade/plans/_rotary_fields.py",
        (("shape.index(rows) if valid", "0 if valid"),),
        tests=f"{_PREPARED} -k odd_positions",
    ),
    *(
        Mutant(
            f"{op}: positions of sections lie as far apart as there are rows",
            f"csrc/rotary/{op}.cc.jinja",
            (("positions.ndim() > 1 ? positions.stride(0) : 0", "positions.size(positions.ndim() - 1)"),),
            tests=f"{tests} -k columns_of_a_buffer",
        )
        for op, tests in (("rotary", _TESTS), ("qkv_prepare", _PREPARED))
    ),
    Mutant(
        "rotary: the factor of short sequences is that of all",
        _TABLE,
        (("return float(each[length])", 'return float(each["short"])'),),
        tests=f"{_TABLES} -k factor_of_cosines",
    ),
    Mutant(
        "rotary: the halves of a pair are exchanged",
        "kernels/kv_cache/unit.cuh",
        (
            (
                "first = sub_rounded(mul_rounded(first, cosines[i]), from_second);",
                "first = add_rounded(mul_rounded(first, cosines[i]), from_second);",
            ),
        ),
        tests=_TESTS,
    ),
    Mutant(
        "rotary: a position past the table takes the first row",
        _ANGLES,
        (("if (position[s] >= count) position[s] = count - 1;", "if (position[s] >= count) position[s] = 0;"),),
        tests=f"{_TESTS} -k bits_of_the_reference",
    ),
    Mutant(
        "rotary: a row with a negative position is rotated",
        _ANGLES,
        (("skips |= position[s] < 0;", "skips |= position[s] < -1;"),),
        tests=f"{_TESTS} -k no_position",
    ),
    Mutant(
        "rotary: the sections of neighbours are those of halves",
        "kernels/kv_cache/unit.cuh",
        (("return k < kRun / 2 ? unit.a / 2 + k : unit.b / 2 + k - kRun / 2;", "return unit.a / 2 + k;"),),
        tests=f"{_TESTS} -k sections_neighbours",
    ),
    Mutant(
        "rotary: elements before the rotated ones are not copied",
        _KERNEL,
        (("return rest < C::kOffset ? rest : run;", "return run;"),),
        tests=f"{_TESTS} -k offset",
    ),
    Mutant(
        "rotary: all rows take the position of the first",
        _ANGLES,
        (("[s * step + row]", "[s * step]"),),
        tests=f"{_TESTS} -k bits_of_the_reference",
    ),
    Mutant(
        "rotary: the last warp of a row takes the heads of the first",
        _KERNEL,
        (("blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32", "threadIdx.x / 32"),),
        tests=f"{_TESTS} -k bits_of_the_reference",
    ),
    Mutant(
        "rotary: rows that are not valid are written",
        _KERNEL,
        (("row >= valid || valid > p.rows", "valid > p.rows"),),
        tests=f"{_TESTS} -k valid",
    ),
    Mutant(
        "rotary: the reference pairs the wrong elements",
        "opfacade/backends/reference/rotary.py",
        (("if descriptor.interleaved else (x[..., :half]", "if not descriptor.interleaved else (x[..., :half]"),),
        tests=_REFERENCE,
    ),
    Mutant(
        "rotary: the table's size is no bound on positions",
        "opfacade/validation/values.py",
        (("return min(self.stop, int(getattr(args, self.below).shape[0])) if self.below else self.stop", "return self.stop"),),
        tests=_REFERENCE,
    ),
    Mutant(
        "rotary_table: the ramp of yarn runs the other way",
        _TABLE,
        (("plain / factor * ramp + plain * (1 - ramp)", "plain / factor * (1 - ramp) + plain * ramp"),),
        tests=_TABLES,
    ),
    Mutant(
        "rotary_table: angles are products of f32",
        _TABLE,
        (
            (
                "torch.arange(max_positions, dtype=torch.float64)[:, None] * frequencies",
                "(torch.arange(max_positions)[:, None].float() * frequencies.float()).double()",
            ),
        ),
        tests=_TABLES,
    ),
    Mutant(
        "qkv_prepare: the mean is over the rotated elements",
        _PREPARE,
        (("1.f / C::kHeadDim, p_.eps", "1.f / C::kRotated, p_.eps"),),
        tests=f"{_PREPARED} -k kernel_keeps",
    ),
    Mutant(
        "qkv_prepare: the weights of q are those of k",
        _PREPARE,
        (("head.kind == kQ ? p_.q_weight : p_.k_weight", "p_.q_weight"),),
        tests=f"{_PREPARED} -k kernel_keeps",
    ),
    Mutant(
        "qkv_prepare: weights lie where elements are counted, not where they are",
        _PREPARE,
        (("weight(weights, (i < kRun ? a : b) + i % kRun)", "weight(weights, (i < kRun ? unit.a : unit.b) + i % kRun)"),),
        tests=f"{_PREPARED} -k kernel_keeps",
    ),
    Mutant(
        "qkv_prepare: the sum of a head takes in its neighbour",
        _PREPARE,
        (("for (int step = kLanes / 2; step > 0; step /= 2)", "for (int step = 16; step > 0; step /= 2)"),),
        tests=f"{_PREPARED} -k kernel_keeps",
    ),
    Mutant(
        "qkv_prepare: a slot past the pool is stored in its last page",
        "kernels/rotary/destination.cuh",
        (
            ("slot >= size * p.cache.table.num_pages) return Goes::kDropped;", "false) return Goes::kDropped;"),
            ("static_cast<int>(slot / size)", "static_cast<int>(min(slot / size, int64_t{23}))"),
        ),
        tests=f"{_PREPARED} -k minus_one",
    ),
    Mutant(
        "qkv_prepare: v is rotated as k is",
        _PREPARE,
        (("if (head.kind != kV) {", "{"),),
        tests=f"{_PREPARED} -k kernel_keeps",
    ),
    Mutant(
        "qkv_prepare: rows of no request write q",
        _PREPARE,
        (("|| goes == Goes::kNone", ""),),
        tests=f"{_PREPARED} -k no_request",
    ),
    Mutant(
        "qkv_prepare: rows that are not valid are prepared",
        _PREPARE,
        (("|| row_ >= valid || valid > p_.rows", "|| valid > p_.rows"),),
        tests=f"{_PREPARED} -k not_valid_are_left",
    ),
    Mutant(
        "qkv_prepare: a count beyond the rows leaves all valid",
        _PREPARE,
        (("|| row_ >= valid || valid > p_.rows", "|| row_ >= valid"),),
        tests=f"{_PREPARED} -k not_valid_are_left",
    ),
)
