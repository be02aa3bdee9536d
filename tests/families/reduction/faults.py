"""Faults planted in folds and in ops that are a single fold: stages, reducers, lanes that share a row, rounding, layouts."""

from tests.mutation.mutant import cpu

KERNEL = "tests/families/reduction/test_fold_kernel.py"
NORM_KERNEL = "tests/families/norm/test_norm_kernel.py"
FEWER = "tests/families/reduction/test_fewer_lanes.py"
D = "kernels/reduction"

FAULTS = (
    cpu(
        "fold: a row ends one vector early",
        f"{D}/row.cuh",
        "return left > 0 ? M::kVec : 0;",
        "return left > M::kVec ? M::kVec : 0;",
        f"{KERNEL} -k each_length",
    ),
    cpu(
        "fewer lanes: states of warps change their order in shared memory",
        f"{D}/join.cuh",
        "(fold * kWarps + warp) * kStateBytes",
        "(warp * kFolds + fold) * kStateBytes",
        f"{FEWER} -k bits",
    ),
    cpu(
        "fewer lanes: CTAs for the last rows are missing",
        "csrc/reduction/binding/_rows.cc.jinja",
        "Launch(ceil_div(p.rows, {{ rows * fewer }})",
        "Launch(p.rows / {{ rows * fewer }}",
        f"{FEWER} -k bits",
    ),
    cpu(
        "fold: what outputs alone use comes from the vector before",
        f"{D}/fold_vectors.cuh",
        "row.fetch_late(held[wave * M::kPieces + piece], wave, piece,",
        "row.fetch_late(held[wave * M::kPieces + piece], wave, piece - (piece > 0),",
        f"{NORM_KERNEL} -k registers",
    ),
    cpu(
        "fold: states are read before all warps have stored theirs",
        f"{D}/join.cuh",
        "if constexpr (kCluster == 1) __syncthreads();\n  else cluster_sync();",
        "if constexpr (kCluster > 1) cluster_sync();",
        f"{KERNEL} -k each_length",
    ),
    cpu(
        "fold: the identity of a maximum is 0",
        f"{D}/reducers.cuh",
        "return kMost ? Ends<T>::least()",
        "return kMost ? T(0)",
        f"{KERNEL} -k every_layout",
    ),
    cpu(
        "fold: each group is the first",
        "csrc/reduction/device/_stores.cu.jinja",
        'store_pack<kWide>(out.o{{ k }}, p.operand[{{ ins + k }}], at[{{ ins + k }}] + {{ "segment',
        'store_pack<kWide>(out.o{{ k }}, p.operand[{{ ins + k }}], at[{{ ins + k }}] + {{ "0 * segment',
        f"{KERNEL} -k groups",
    ),
    cpu(
        "fold: a row's lanes follow the number of rows",
        "opfacade/backends/cuda/folds/config.py",
        "vector = vector_of(program)\n",
        "vector = vector_of(program) if program.shape[0] > 1 else 2\n",
        f"{KERNEL} -k single_row",
    ),
)
