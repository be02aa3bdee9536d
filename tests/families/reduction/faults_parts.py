"""Faults planted in folds of unaligned rows and in rows that are split into parts."""

from tests.mutation.mutant import cpu

PARTS = "tests/families/reduction/test_parts.py -k bits"
SPREAD = "tests/families/reduction/test_spread.py -k whole_gpu"
FLAT = "tests/families/reduction/test_flat.py"
DEVIATIONS = "tests/families/reduction/test_deviations.py"
D = "kernels/reduction"

FAULTS = (
    cpu(
        "fold: deviations of a vector are those from its first element",
        f"{D}/reducers.cuh",
        "const T deviation = ops::sub_(from[i], mean);",
        "const T deviation = from[i];",
        DEVIATIONS,
    ),
    cpu(
        "fold: states of as many elements each are joined as if one had them all",
        f"{D}/reducers.cuh",
        "a.count == b.count ? T(0.5)",
        "a.count == b.count ? T(1)",
        DEVIATIONS,
    ),
    cpu(
        "fold: an infinite maximum of a softmax counts NaN",
        f"{D}/reducers.cuh",
        "return x == most ? T(1) : found;  // without a branch",
        "return found;  // without a branch",
        DEVIATIONS,
    ),
    cpu(
        "fold: sums of a softmax lie where others still read its maxima",
        f"{D}/fold_stages.cuh",
        "join_row<kStage, Total, kStateBytes / 2>(sum)",
        "join_row<kStage, Total>(sum)",
        f"{DEVIATIONS} -k late_warp",
    ),
    cpu(
        "flat: a weight goes on from row to row",
        f"{D}/row.cuh",
        "M::flat_once(k) ? 0 : M::flat_size(k)",
        "M::flat_size(k)",
        f"{FLAT} -k separate_rows",
    ),
    cpu(
        "flat: shared memory of a weight is missing",
        "csrc/reduction/binding/_rows.cc.jinja",
        "bytes += flat_bytes<int64_t>(1, p.elements, {{ sizes[loop.index0] }});",
        "bytes += 0;",
        f"{FLAT} -k separate_rows",
    ),
    cpu(
        "fold: a CTA of a row writes none but the first part",
        f"{D}/fold.cuh",
        "store_backwards(uniform, wave, first_piece(), end_piece());",
        "store_backwards(uniform, wave, first_piece(), min(end_piece(), M::kRun));",
        PARTS,
    ),
    cpu(
        "fold: the number of CTAs decides where a row is cut",
        f"{D}/fold_vectors.cuh",
        "return (pieces() + M::kRun - 1) / M::kRun; }",
        "return p.ctas; }",
        PARTS,
    ),
    cpu(
        "fold: rows of 4 bytes are shifted, and none of their vectors is looked at",
        "kernels/elementwise/pack.cuh",
        "kShifted = kSize < 4;",
        "kShifted = kSize < 8;",
        "tests/families/reduction/test_odd_rows.py -k unaligned_rows_have",
    ),
    *(
        cpu(f"scattered: {what}", file, right, wrong, "tests/families/reduction/test_scattered.py -k every_path")
        for what, file, right, wrong in (
            (
                "a lane has one element too few",
                f"{D}/row.cuh",
                "element(0) + M::kStep - 1) / M::kStep",
                "element(0)) / M::kStep",
            ),
            ("elements of a place follow each other", f"{D}/reducers.cuh", "x[i], first + i * kStep)", "x[i], first + i)"),
            (
                "rows of whole vectors are taken for aligned ones",
                "csrc/reduction/binding/_axes.cc.jinja",
                "0 if scattered | default(false) else vector",
                "vector",
            ),
            (
                "an element by its place is the next in memory",
                f"{D}/fold.cuh",
                "row.element(piece) + i * M::kStep);\n        M::store_one",
                "row.element(piece) + i);\n        M::store_one",
            ),
        )
    ),
    *(
        cpu(
            f"stores by aligned vectors: {what}",
            f"{D}/fold.cuh",
            right,
            wrong,
            "tests/families/reduction/test_odd_rows.py -k unaligned_rows_have",
        )
        for what, right, wrong in (
            ("the last elements of a row stay away", "end = (p.elements + late + kAtOnce - 1) / kAtOnce", "end = pieces()"),
            ("elements before the row are written", "const int from = max(0, -element),", "const int from = 0,"),
        )
    ),
    cpu(
        "fold on the whole GPU: the states of a row end with those that a warp joins at once",
        f"{D}/spread.cuh",
        "first < p.parts * kWarps; first += 32 * kAtOnce",
        "first < min(p.parts * kWarps, 32 * kAtOnce); first += 32 * kAtOnce",
        SPREAD,
    ),
    cpu(
        "fold on the whole GPU: a CTA folds the lanes of the first one",
        f"{D}/spread.cuh",
        "lane(static_cast<int>(blockIdx.x) % kCtas * M::kSpreadThreads + static_cast<int>(threadIdx.x))",
        "lane(static_cast<int>(threadIdx.x))",
        SPREAD,
    ),
    cpu(
        "fold on the whole GPU: the workspace has room for a part of the states",
        "opfacade/backends/cuda/folds/engine.py",
        "needed: int = 4 * column_config.state_words(program) * rows * warps",
        "needed: int = 4 * rows * warps",
        "tests/families/reduction/test_spread.py -k workspace",
    ),
    cpu(
        "flat rows: results are copied before all rows are folded",
        f"{D}/flat.cuh",
        "if constexpr (M::kFullOutputs) __syncthreads();",
        "",
        f"{FLAT} -k order_of_the_warps",
    ),
    cpu(
        "flat rows: rows are folded before all are there",
        f"{D}/flat.cuh",
        "cp_async_wait<0>();\n    __syncthreads();",
        "cp_async_wait<0>();",
        f"{FLAT} -k bits",
    ),
    cpu(
        "flat rows: the elements behind the last whole piece stay away",
        f"{D}/flat.cuh",
        "if (last < first) return;",
        "return;",
        f"{FLAT} -k bits",
    ),
    cpu(
        "flat rows: rows past the valid ones are written",
        f"{D}/flat.cuh",
        "copy_out(min(int64_t{rows}, valid - first)",
        "copy_out(int64_t{rows}",
        f"{FLAT} -k valid",
    ),
    cpu(
        "flat rows: rows apart are copied as if they followed each other",
        "csrc/reduction/fold.h",
        "if (size[k] != 0 && p_.extent[0] > 1 && p_.stride[k][0] != p_.elements) return false;\n    return true;",
        "if (size[k] < 0) return false;\n    return true;",
        f"{FLAT} -k bits",
    ),
)
