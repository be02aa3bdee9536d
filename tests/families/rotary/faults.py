"""Faults planted in rotary embeddings: the kernel, the program, the reference and the tables of angles."""

from tests.mutation.mutant import Mutant

_TESTS = "tests/families/rotary/test_rotary_kernel.py"
_PREPARE, _PREPARED = "kernels/rotary/qkv_prepare.cuh", "tests/families/rotary/test_qkv_prepare.py"
_TABLE, _TABLES = "opfacade/plans/_rotary/table.py", "tests/families/rotary/test_table.py"

FAULTS = (
    *(
        Mutant(
            f"{op}: positions of sections lie as far apart as there are rows",
            f"csrc/rotary/{op}.cc.jinja",
            (("positions.ndim() > 1 ? positions.stride(0) : 0", "positions.size(positions.ndim() - 1)"),),
            tests=f"{tests} -k larger_buffer",
        )
        for op, tests in (("rotary", _TESTS), ("qkv_prepare", _PREPARED))
    ),
    Mutant(
        "rotary: the factor of short sequences is that of all",
        _TABLE,
        (("return float(each[length])", 'return float(each["short"])'),),
        tests=f"{_TABLES} -k cosine_factor_per_length",
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
        tests=f"{_PREPARED} -k negative_position",
    ),
)
