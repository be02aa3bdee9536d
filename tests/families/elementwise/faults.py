"""Faults planted in the paths of maps: ends of vectors, reuse across rows, counts of valid rows, tiles."""

from tests.mutation.mutant import Mutant

_KERNEL, _TILE, _HOST = "kernels/elementwise/map.cuh", "kernels/elementwise/tile.cuh", "csrc/elementwise/map.h"
_PACK, _ODD = "kernels/elementwise/pack.cuh", "tests/families/elementwise/test_map_odd.py"
_PATHS, _GATED = "tests/families/elementwise/test_map_paths.py", "tests/families/activation/test_activation_kernel.py"

FAULTS = (
    Mutant(
        "map: the last element of a row whose end is within a vector is left out",
        _KERNEL,
        (("return min(width + late - int64_t", "return min(width - 1 + late - int64_t"),),
        tests=_GATED,
    ),
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
        "map: rows of a thread overlap those of the next",
        _KERNEL,
        (("(own - within) * p.each + within", "own"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: of two axes, rows of a thread overlap those of the next",
        _KERNEL,
        (("(line - within) * p.each + within", "line"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: of two axes, the vector within which a row ends is taken for whole",
        _HOST,
        (("p_.extent[last] / count)", "ceil_div(p_.extent[last], count))"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: of two axes, a thread takes rows past the last",
        _KERNEL,
        (("row + (more << p.band) < p.lines", "row < p.lines"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: a CTA of fewer threads leaves a gap before the next",
        _KERNEL,
        (
            (
                "    vector = blockIdx.x * p.each * blockDim.x + threadIdx.x;",
                "    vector = blockIdx.x * p.each * kMapThreads + threadIdx.x;",
            ),
        ),
        tests=_PATHS,
    ),
    Mutant(
        "map: the outer axes of a row are those of the first",
        _KERNEL,
        (("(p, outer, p.rank - 2, place.at, first) != 0", "(p, 0, p.rank - 2, place.at, first) != 0"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: rows that are not valid are written",
        _KERNEL,
        ((": p.rank > 2 ? lines : min(lines, valid))", ": lines)"),),
        tests=_GATED,
    ),
    Mutant(
        "map: planes that are not valid are written",
        _KERNEL,
        ((" || (p.rank > 2 && first >= valid)", ""),),
        tests=_PATHS,
    ),
    Mutant(
        "map: of one axis, elements that are not valid are written",
        _KERNEL,
        ((", width = min(p.extent[0], valid);", ", width = p.extent[0];"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: a vector is taken for aligned because its first row is",
        _HOST,
        (("(axis == along || p_.stride[k][axis] * size[k] % access == 0)", "true"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: chunks of a column are not where the row looks for them",
        _TILE,
        (("from + i * kChunks * 16", "from + i * kChunks * 16 + (i == kVec - 1) * 16"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: a vector begins where its row does, though the result is not aligned there",
        _KERNEL,
        (("at[k] -= late * p.stride[k][p.rank - 1];", "at[k] -= 0;"),),
        tests=_ODD,
    ),
    Mutant(
        "map: elements before a row are written",
        _KERNEL,
        (("from = item.number(u) == 0 ? late : 0;", "from = 0;"),),
        tests=_ODD,
    ),
    Mutant(
        "map: of rows that begin anywhere, the last vector is left out",
        _HOST,
        (("ceil_div(width + before_, count)", "ceil_div(width, count)"),),
        tests=_ODD,
    ),
    Mutant(
        "map: a piece of a vector outside of its tensor is taken for elements",
        _PACK,
        (("else if (touches_outside(base, at, span, to)) {", "else if (false) {"),),
        tests="tests/families/reduction/test_odd_rows.py -k outside_of_a_tensor",
    ),
    Mutant(
        "map: a result that is not aligned is stored 16 bytes at once",
        _PACK,
        (("to == kCount && late(base, at) == 0)", "to == kCount)"),),
        tests=_ODD,
    ),
    Mutant(
        "map: a tile writes past its last column",
        _TILE,
        (("count = min(count - static_cast<int>(column), M::kVec);", "count = M::kVec;"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: a tile writes past its last row",
        _TILE,
        (("return count > 0 && row + round * kDown < rows;", "return count > 0;"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: rows of a tile are computed before its columns have come",
        _TILE,
        (("        cp_async_wait<0>();\n", ""),),
        tests=_PATHS,
    ),
    Mutant(
        "map: columns of a tile are copied 16 bytes at a time though they are not aligned",
        _TILE,
        (("if (wide && row + kPerChunk <= rows)", "if (row + kPerChunk <= rows)"),),
        tests=_PATHS,
    ),
    Mutant(
        "map: two transposed inputs share a tile",
        _HOST,
        (("p_.tile_at[k] = bytes, bytes +=", "p_.tile_at[k] = 0, bytes +="),),
        tests=_PATHS,
    ),
    Mutant(
        "map: a vector of 8 bytes is halved once too often",
        "opfacade/backends/cuda/map_engine.py",
        (("while vector > 1 and vector * weight", "while vector * weight"),),
        tests="tests/families/elementwise/test_map_kernel.py -k however_long",
    ),
)
