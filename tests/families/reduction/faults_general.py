"""Faults in folds of any program by one CTA a row."""

from tests.mutation.mutant import cpu

GENERAL = "tests/families/reduction/test_general.py"
ENGINE, KERNEL = "opfacade/backends/cuda/general_engine.py", "kernels/reduction/general.cuh"
PLACES = "csrc/reduction/_general_places.cu.jinja"

FAULTS = (
    cpu(
        "general: a stage reads results before all warps have stored theirs",
        KERNEL,
        "      __syncthreads();\n      stages(At<kStage + 1>{});",
        "      stages(At<kStage + 1>{});",
        f"{GENERAL} -k every_layout and row_after_groups",
    ),
    cpu(
        "general: warps that share a result are not joined",
        KERNEL,
        "state = join_warps<R, kGeneralWarps, 1>(state, static_cast<int>(threadIdx.x) / 32, kPlaceStates);",
        "(void)kPlaceStates;",
        f"{GENERAL} -k every_layout and few_groups",
    ),
    cpu(
        "general: a warp has the results of the first warp",
        KERNEL,
        "result = threadIdx.x / lanes;",
        "result = 0;",
        f"{GENERAL} -k counts_of_numpy or every_layout and part",
    ),
    cpu(
        "general: rows past the valid ones are used",
        KERNEL,
        "p.num_valid == nullptr || place[0] < valid",
        "valid != 0",
        f"{GENERAL} -k rows_past",
    ),
    cpu(
        "general: CTAs share the results of one row",
        KERNEL,
        "results = p.results + blockIdx.x * p.words;",
        "results = p.results;",
        f"{GENERAL} -k workspace_has or large",
        blind="The emulator runs one CTA after the other, so their results do not meet.",
    ),
    cpu(
        "general: places of results are counted from the outermost axis",
        "csrc/reduction/_general_reads.cu.jinja",
        "{% for at in axes | reverse %}",
        "{% for at in axes %}",
        f"{GENERAL} -k counts_of_numpy or every_layout and part",
    ),
    cpu(
        "general: the second result of a stage lies on the first",
        PLACES,
        "p.first[stage] + int64_t{p.apart[stage]} * part;",
        "p.first[stage];",
        f"{GENERAL} -k every_layout and part",
    ),
    cpu(
        "general: results of a stage lie where those of the one before it do",
        "csrc/reduction/fold_general.cc.jinja",
        "  p.words += int64_t{p.apart[{{ stage }}]} * {{ parts[stage] | length }};",
        "  p.words += 0;",
        f"{GENERAL} -k every_layout and last_kept",
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
    cpu(
        "general: the workspace has one result of each stage",
        ENGINE,
        "sum(parts * math.prod",
        "sum(math.prod",
        f"{GENERAL} -k workspace_has",
    ),
    cpu(
        "general: an empty axis leaves no result to count",
        ENGINE,
        "math.prod(max(1, program.shape[axis]) for axis in program.fold)",
        "math.prod(program.shape[axis] for axis in program.fold)",
        f"{GENERAL} -k more_results",
    ),
    cpu(
        "general: a program is offered to the reference alone",
        "opfacade/backends/cuda/reduction.py",
        "    general_kernel(FoldDescriptor),\n",
        "",
        f"{GENERAL} -k random_program_has",
    ),
    cpu(
        "levels: a second fold without meaning is an error",
        "opfacade/backends/cuda/level_program.py",
        "    except DescriptorError:\n",
        "    except ArithmeticError:\n",
        "tests/families/reduction/test_levels.py -k second_fold",
    ),
)
