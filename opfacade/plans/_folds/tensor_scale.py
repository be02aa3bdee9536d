"""One scale for a whole tensor, computed with a fold of its rows in three launches. The first writes the largest |result| of
each row, the second the scale, and the third computes the results again and divides them. Only the third launch writes rows, so
a residual sum is read twice and written once."""

from __future__ import annotations

from opfacade.plans._folds.program import FoldOutput, FoldProgram
from opfacade.programs.expression import Node, stage
from opfacade.programs.stages import Stage

MOST = "most"


def with_most(program: FoldProgram, result: Node) -> FoldProgram:
    """The fold with an additional last output `most`, the largest |result| of each row. program: a fold that reads the scale as
    its last input."""
    largest = Stage(reducer="max", value=abs(result), axes=program.fold)
    most = FoldOutput(name=MOST, dtype="f32", value=stage(len(program.stages), "f32"), over=program.kept)
    found = program.model_copy(update={"stages": (*program.stages, largest), "outputs": (*program.outputs, most)})
    return found.revalidated()
