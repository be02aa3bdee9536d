"""Faults planted in the kernel that folds any program with one CTA per row."""

from tests.mutation.mutant import cpu

GENERAL = "tests/families/reduction/test_general.py"
ENGINE, KERNEL = "opfacade/backends/cuda/folds/general_engine.py", "kernels/reduction/general.cuh"

FAULTS = (
    cpu(
        "general: warps that share a result are not joined",
        KERNEL,
        "state = join_warps<R, kWarps, 1>(state, static_cast<int>(threadIdx.x) / 32, kPlaceStates);",
        "(void)kPlaceStates;",
        f"{GENERAL} -k every_layout and few_groups",
    ),
    cpu(
        "general: rows past the valid ones are used",
        KERNEL,
        "p.num_valid == nullptr || place[0] < valid",
        "valid != 0",
        f"{GENERAL} -k rows_past",
    ),
    cpu(
        "general: each output is written in a pass of its own",
        ENGINE,
        "    found: dict[frozenset[int], tuple[int, ...]] = {}\n",
        "    return [(k,) for k in range(len(program.outputs))]\n    found: dict[frozenset[int], tuple[int, ...]] = {}\n",
        f"{GENERAL} -k every_layout and row_after_groups",
    ),
    cpu(
        "general: a stage has results along folded axes along which they are the same",
        ENGINE,
        "return set(varying(program, stage.value)) - set(program.joined(stage))",
        "return set(program.fold) - set(program.joined(stage))",
        f"{GENERAL} -k workspace_has",
    ),
)
