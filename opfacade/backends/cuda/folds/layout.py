"""How threads share the work of a fold: refusals, constants, and the number of roundings for each term."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opfacade.backends.cuda.folds.config import Config, config, inner_axes, most_ctas, shifts, spreads
from opfacade.backends.cuda.folds.flat import flat, is_shared
from opfacade.backends.cuda.folds.strategies import flat as flat_numbers
from opfacade.backends.cuda.folds.strategies import rows as numbers
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import Reason
from opfacade.core.target import Target
from opfacade.plans._folds.form import cached_by_form
from opfacade.plans._folds.program import FoldOutput, FoldProgram
from opfacade.programs.expression import ordered
from opfacade.programs.guarantees import Math

EVIDENCE = (
    "tests/families/reduction/test_fold_kernel.py::test_it_keeps_its_bound_on_every_layout",
    "tests/families/reduction/test_fold_kernel.py::test_bits_do_not_depend_on_the_path_nor_on_other_rows",
)
_TREE = 2 + 2 + 5 + 8  # roundings in an uneven vector, chains, lanes and warps


@cached_by_form
def math_of(program: FoldProgram) -> Math:
    return source.math_of([(made.dtype, node) for made, node in zip(program.outputs, program.resolved[1], strict=True)])


class RowLayout:
    """How threads share the work of a fold. Here lanes share a row; `column_engine` has a subclass for columns."""

    impl, template, evidence = "rows", "reduction/fold", EVIDENCE
    tree, cuts, ragged = _TREE, False, False  # roundings of joins; whether the number of rows decides where a row is cut
    one_scale = False  # whether a result depends on all rows
    changed: frozenset[str] = frozenset({"welford", "expsum"})  # reducers whose order of additions has changed since revision 1

    def declines(self, program: FoldProgram, target: Target) -> Iterator[Reason]:
        if inner_axes(program) is None:
            yield Reason("OPF-S003", "stages.axes", "several kinds of groups", "all folded axes, and one kind of group")
            return
        inner = inner_axes(program) or program.fold
        if inner != program.fold[-len(inner) :]:
            yield Reason("OPF-S003", "stages.axes", f"{inner}", f"the last ones of {program.fold}")
        whole = [program.joined(stage) == program.fold for stage in program.stages]
        if any(self._is_row_of_groups(program, made, whole) for made in program.outputs):
            yield Reason("OPF-S003", "outputs", "a row that uses the result of a group", "groups and elements that use it")
        if whole != sorted(whole, reverse=True):
            yield Reason("OPF-S003", "stages", "a row after its groups", "stages along whole rows first")

    def _is_row_of_groups(self, program: FoldProgram, made: FoldOutput, whole: Sequence[bool]) -> bool:
        used = [node.data[0] for node in ordered([made.value]) if node.kind == "stage"]
        return self.level(program, program.axes_of(made)) == "row" and not all(whole[index] for index in used)

    def revision(self, program: FoldProgram) -> int:
        changed = self.changed - ({"expsum"} if self.math(program) == "approx" else set())
        return 2 if any(stage.reducer in changed for stage in program.stages) else 1

    def config(self, program: FoldProgram, target: Target) -> Any:
        return config(program, target)

    def flat(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        """Constants of the kernel in which unaligned rows pass through shared memory; empty if there is none."""
        if self.impl != "rows" or not flat(program, self.config(program, target)):
            return {}
        once = tuple(is_shared(program, one) for one in program.inputs)
        sizes = {
            "least_bytes": flat_numbers.LEAST_BYTES,
            "bytes_of_cta": flat_numbers.BYTES_OF_CTA,
            "sms": target.sm_count,
            "most_shared": target.max_shared_memory,
        }
        return {"flat": True, "once": once, "least_ctas": flat_numbers.CTAS} | sizes

    def spread(self, program: FoldProgram, target: Target) -> Config | None:
        """The shape if all CTAs share each row, which changes no bit of a row; None otherwise."""
        shape = self.config(program, target) if self.impl == "rows" else None
        return shape if shape is not None and spreads(program, shape, target) else None

    def math(self, program: FoldProgram) -> Math:
        return math_of(program)

    def chains(self, shape: Any, summed: bool) -> int:
        """Number of chains of additions in a row. summed: each lane has one chain; otherwise several elements of a vector form
        a chain."""
        return int(shape.lanes) * (1 if summed else shape.vector // -(-shape.vector // 4))

    def steps(self, shape: Any, summed: bool) -> tuple[int, int]:
        """(chains of additions that share the terms of a row, roundings of joins)."""
        return self.chains(shape, summed), self.tree

    def constants(self, program: FoldProgram, target: Target) -> dict[str, Any]:
        shape, inner = self.config(program, target), inner_axes(program) or program.fold
        names = ("vector", "threads", "rows", "lanes", "pieces", "waves", "cluster", "held", "fewer", "many_rows")
        lanes = {name: getattr(shape, name) for name in names}
        if shape.run:
            lanes |= {"run": shape.run, "max_parts": numbers.MAX_PARTS, "most_ctas": most_ctas(target), "sms": target.sm_count}
        if inner == program.fold and not shifts(program, shape):
            lanes |= {"shifts": False}
        lanes |= {"scattered": True} if shape.scattered else {}
        stages = sum(program.joined(stage) == program.fold for stage in program.stages)
        slots = numbers.slots(shape.threads, shape.rows, stages) if shape.threads * shape.cluster > 32 else 0
        lanes |= {"slots": numbers.slots_of_parts(stages) if shape.run else slots, "row_stages": stages}
        return lanes | {"near": False, "inner": len(inner), "segmented": inner != program.fold}

    def held_elements(self, program: FoldProgram, target: Target) -> int:
        """Elements of an input that a thread keeps in registers between the stages and the outputs."""
        shape = self.config(program, target)
        return shape.vector * shape.pieces * shape.waves * shape.fewer if shape.held else 0

    def level(self, program: FoldProgram, axes: Sequence[int]) -> str:
        """Whether a value with these axes exists per element, per group or per row."""
        if set(axes) & set(inner_axes(program) or program.fold):
            return "element"
        return "group" if set(axes) & set(program.fold) else "row"
