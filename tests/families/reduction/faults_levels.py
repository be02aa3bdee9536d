"""Faults in folds of two levels."""

from tests.mutation.mutant import cpu

LEVELS = "tests/families/reduction/test_levels.py"
PROGRAM, ENGINE = "opfacade/backends/cuda/level_program.py", "opfacade/backends/cuda/level_engine.py"

FAULTS = (
    cpu(
        "levels: results of groups overlap in the workspace",
        ENGINE,
        "found.append(found[-1] + -(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT)",
        "found.append(-(-needed // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT)",
        f"{LEVELS} -k workspace_has",
    ),
    cpu(
        "levels: the workspace of a 64-bit result is that of 32 bits",
        ENGINE,
        "needed = ITEMSIZE[made.dtype] * math.prod",
        "needed = 4 * math.prod",
        f"{LEVELS} -k workspace_has",
    ),
    cpu(
        "levels: results of groups lie one step apart along every axis",
        "csrc/reduction/_tensors.cc.jinja",
        ", step), step *= p.size[{{ several[0] }}];",
        ", step);",
        f"{LEVELS} -k every_layout and norms",
    ),
    cpu(
        "levels: what differs within a group is taken from its first element",
        PROGRAM,
        "return bool(used) and used <= self.inner.keys() and not varying(self.program, node) & set(self.axes)",
        "return bool(used) and used <= self.inner.keys()",
        f"{LEVELS} -k elements and every_layout",
    ),
    cpu(
        "levels: a stage that uses a row counts as one of groups",
        PROGRAM,
        "if self.program.joined(one) == self.axes and _stages_in(one.value) <= self.inner.keys():",
        "if self.program.joined(one) == self.axes:",
        f"{LEVELS} -k elements and every_layout",
    ),
    cpu(
        "levels: places of the second fold are those of the whole",
        PROGRAM,
        "return coord(self.place[node.data])",
        "return coord(0)",
        f"{LEVELS} -k places_of_the_second_fold",
    ),
    cpu(
        "levels: the extent of an axis that the second fold lacks is 1",
        PROGRAM,
        'value=program.shape[axis], type="i64"',
        'value=1, type="i64"',
        f"{LEVELS} -k many_results and every_layout",
    ),
    cpu(
        "levels: the second fold does not know how many rows are valid",
        "csrc/reduction/fold_levels.cc.jinja",
        "rows::params(in, num_valid)",
        "rows::params(in, nullptr)",
        f"{LEVELS} -k valid",
    ),
    cpu(
        "levels: the bound leaves out the fold of fewer lanes",
        ENGINE,
        "return many[0], self.tree + int(few[1])",
        "return many[0], self.tree",
        f"{LEVELS} -k counts_the_roundings",
    ),
    cpu(
        "folds: a result is the same along all axes that its stage does not join",
        "opfacade/plans/_fold_checks.py",
        "stages.append(varies(stage.value, inputs, stages) - frozenset(program.joined(stage)))",
        "stages.append(frozenset())",
        f"{LEVELS} -k differs_where",
    ),
    cpu(
        "folds: a stage has each result once for all entries of an axis that it does not join",
        "opfacade/plans/_fold_values.py",
        "return result.reshape([1 if axis in program.joined(stage) else next(sizes)",
        "return result.reshape([next(sizes) if axis not in program.joined(stage) and axis == 0 else 1",
        f"{LEVELS} -k norms and every_layout",
    ),
)
