"""Faults planted in the kernels of maps: ends of vectors, reuse across rows, counts of valid rows, tiles."""

from tests.mutation.mutant import Mutant

_KERNEL, _TILE, _HOST = "kernels/elementwise/map.cuh", "kernels/elementwise/tile.cuh", "csrc/elementwise/map.h"
_PATHS = "tests/families/elementwise/test_map_paths.py"

FAULTS = (
    Mutant(
        "map: a thread takes several vectors though the last is not whole",
        _KERNEL,
        (("count(p.each - 1) == M::kVec", "count(p.each - 1) > 0"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: an input that changes from row to row is read once",
        _HOST,
        (("if (p_.stride[k][p_.rank - 2] == 0) p_.shared", "if (p_.stride[k][p_.rank - 1] != 0) p_.shared"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: of two axes, the vector within which a row ends is taken for whole",
        _HOST,
        (("p_.extent[last] / count)", "ceil_div(p_.extent[last], count))"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: apart, a thread takes several elements though the last is beyond the result",
        _KERNEL,
        (("p.each > 1 && first + (M::kApart - 1) * blockDim.x < p.whole_ones", "p.each > 1"),),
        tests=f"{_PATHS} -k unaligned",
    ),
    Mutant(
        "map: apart, rows follow each other without a gap",
        _KERNEL,
        (("int64_t{row[u]} * p.row_step[k] + ", "int64_t{row[u] * p.vectors * p.column_step[k]} + "),),
        tests=f"{_PATHS} -k unaligned",
    ),
    Mutant(
        "map: chunks of a column are not where the row looks for them",
        _TILE,
        (("from + i * kChunks * 16", "from + i * kChunks * 16 + (i == kVec - 1) * 16"),),
        tests=_PATHS,
    ),
    Mutant(
        "programs: of an operation that rounds to fp8, hardware without it is thought able",
        "opfacade/backends/cuda/programs/source.py",
        (("or any(node.op in _ROUNDS_FP8", "or any(node.op in _FP8"),),
        tests="tests/backends/test_architectures.py -k fp8",
    ),
    Mutant(
        "build: an error in generated code is one of the machine",
        "opfacade/jit/build.py",
        (("error.refused_code = _REFUSED_CODE.search(output) is not None", "error.refused_code = False"),),
        tests="tests/jit/sass/test_refused_code.py",
    ),
)
