"""Faults planted in folds of columns, split folds and ragged folds."""

from tests.mutation.mutant import cpu

D = "kernels/reduction"
IN_COLUMNS = "tests/families/reduction/test_columns.py"
IN_PARTS = "tests/families/reduction/test_split.py"
RAGGED = "tests/families/reduction/test_ragged.py"

FAULTS = (
    *(
        cpu(
            f"cluster: lanes of a warp {what} apart",
            "kernels/ptx/cluster_barrier.cuh",
            f"  __syncwarp();\n  aligned_cluster_{half}();",
            f"  aligned_cluster_{half}();",
            tests,
        )
        for what, half, tests in (
            ("meet", "sync", f"{IN_COLUMNS} -k cluster"),
            ("arrive", "arrive", f"{IN_COLUMNS} -k cluster"),
            ("publish", "publish", "tests/families/sampling/test_emulated.py -k number_of_ctas"),
            ("wait", "wait", f"{IN_COLUMNS} -k cluster"),
        )
    ),
    cpu(
        "split: a part ends with its last whole vector",
        f"{D}/split.cuh",
        "return static_cast<int>(left < 0 ? 0 : left < kVec ? left : kVec);",
        "return left < kVec ? 0 : kVec;",
        f"{IN_PARTS} -k numpy",
    ),
    cpu(
        "split: lanes that have no part join the first one",
        f"{D}/split.cuh",
        "typename R::State all = R::none();",
        "typename R::State all = load_partial<M, kStage, typename R::State>(p, row, 0);",
        f"{IN_PARTS} -k numpy",
    ),
    cpu(
        "split: the place of an element is that in its part",
        f"{D}/split.cuh",
        "accumulate<ReducerOf<M, kStage>>(states, x, count, static_cast<int>(first));",
        "accumulate<ReducerOf<M, kStage>>(states, x, count, static_cast<int>(first - begin));",
        f"{IN_PARTS} -k numpy",
    ),
    cpu(
        "split: the states of a part are read before all warps have stored theirs",
        f"{D}/join.cuh",
        "if constexpr (kCluster == 1) __syncthreads();\n  else cluster_sync();",
        "if constexpr (kCluster > 1) cluster_sync();",
        f"{IN_PARTS} -k numpy",
    ),
    cpu(
        "ragged: a row ends one element late",
        f"{D}/ragged_range.cuh",
        "return {begin, end - begin};",
        "return {begin, min(end + 1, total) - begin};",
        f"{RAGGED} -k numpy",
    ),
    cpu(
        "ragged: a row that falls has as many elements as it falls by",
        f"{D}/ragged_range.cuh",
        "min(max(int64_t{indptr[row + 1]}, begin), total);\n  return {begin, end - begin};",
        "min(max(int64_t{indptr[row + 1]}, int64_t{0}), total);\n  return {begin, end < begin ? begin - end : end - begin};",
        f"{RAGGED} -k invalid_entries",
    ),
    cpu(
        "ragged: a row of a CTA is left out",
        f"{D}/ragged.cuh",
        "const RowRange range = bounds(thread < p.each ? far(thread) : p.rows)",
        "const RowRange range = bounds(0 < thread && thread < p.each ? far(thread) : p.rows)",
        f"{RAGGED} -k numpy",
    ),
    cpu(
        "ragged: the warps of a long row are not joined",
        f"{D}/ragged.cuh",
        "if (lanes != 32) joined",
        "if (lanes == 0) joined",
        f"{RAGGED} -k numpy",
    ),
    cpu(
        "ragged: a row is folded by as many threads as fit where it begins",
        f"{D}/ragged.cuh",
        ": p(params), lane(lane), lanes(lanes),",
        ": p(params), lane(static_cast<int>((lane + range.begin) % lanes)), lanes(lanes),",
        f"{RAGGED} -k same_bits",
    ),
    cpu(
        "ragged: long rows past the first 32 of a CTA are left out",
        f"{D}/ragged.cuh",
        "if (ours == 0 && (group += 32) < p.each) {",
        "if (ours == 0 && (group += 32) < 32) {",
        f"{RAGGED} -k many_short",
    ),
    cpu(
        "ragged: rows that a warp folds together end with their first batch",
        f"{D}/ragged_group.cuh",
        "begin - lane < longest;",
        "begin - lane < min(longest, 1u);",
        f"{RAGGED} -k folds_together",
    ),
    cpu(
        "ragged: entries are not bounded",
        "opfacade/plans/_folds/program.py",
        "values=(0, total + 1), dtype=self.ragged",
        "values=(0, 2**31 - 1), dtype=self.ragged",
        f"{RAGGED} -k validation",
    ),
)
