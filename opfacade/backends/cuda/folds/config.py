"""How the lanes of a kernel share a row. It depends on the row's length, its groups and dtypes, never on the number of rows.

Vectors of `vector` elements are distributed to `threads` * `cluster` lanes. `lanes` neighbouring lanes share a group (the axes
that the last stages fold), with `pieces` vectors each; `waves`: groups per lane. held: a row is in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from opfacade.backends.cuda.folds import scatter
from opfacade.backends.cuda.folds.strategies import rows as numbers
from opfacade.backends.cuda.folds.strategies import spread
from opfacade.core.answer_cache import AnswerCache
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.target import Target
from opfacade.plans._folds.form import cached_by_form
from opfacade.plans._folds.program import FoldProgram
from opfacade.programs.expression import ordered
from opfacade.programs.fields import Input


@dataclass(frozen=True, slots=True)
class Config:
    vector: int  # elements per load
    threads: int  # per row, in one CTA
    rows: int  # per CTA
    lanes: int  # per group
    pieces: int  # vectors per lane in each group
    waves: int  # groups that the same lanes take one after the other
    cluster: int = 1  # CTAs per row
    held: bool = True  # whether a row is in registers
    run: int = 0  # vectors per thread in a part of a row that is read again; 0: not cut
    fewer: int = 1  # factor by which lanes per row are fewer if there are many rows
    scattered: bool = False  # whether neighbouring lanes have neighbouring elements, not vectors

    @property
    def many_rows(self) -> int:
        return numbers.MANY_ROWS

    @property
    def most_terms(self) -> int:
        """Elements that a thread may have; 0: any number."""
        return self.vector * self.pieces * self.waves if self.held else 0

    @property
    def facts(self) -> dict[str, int | bool]:
        """Facts of a SKU that determine the order of additions: lanes per row, vectors per lane, lanes per group."""
        found: dict[str, int | bool] = {"span": self.threads * self.cluster, "vector": self.vector}
        found |= {"pieces": self.pieces, "waves": self.waves} if self.held else {"stream": True}
        found |= {"run": self.run} if self.run else {}
        found |= {"scattered": True} if self.scattered else {}
        found |= {"group": self.lanes} if self.lanes != self.threads * self.cluster else {}
        return found | ({"cluster": self.cluster} if self.cluster > 1 else {})


@cached_by_form
def inner_axes(program: FoldProgram) -> tuple[int, ...] | None:
    """The folded axes that form a group, because a stage joins only these or an output lacks only these; () without groups,
    None if there are several kinds."""
    whole = set(program.fold)
    found = {program.joined(stage) for stage in program.stages if set(program.joined(stage)) != whole}
    every = range(len(program.shape))
    missing = [tuple(axis for axis in every if axis not in program.axes_of(made)) for made in program.outputs]
    found |= {axes for axes in missing if axes and set(axes) != whole}
    found = found or _of_inputs(program)
    return None if len(found) > 1 else next(iter(found), ())


def _of_inputs(program: FoldProgram) -> set[tuple[int, ...]]:
    """The last folded axes, but not all folded ones, that an input lacks, if there is only one such set."""
    lacking = {tuple(axis for axis in program.fold if axis not in one.over) for one in program.inputs if one.over is not None}
    found = {axes for axes in lacking if axes and axes != program.fold and axes == program.fold[-len(axes) :]}
    return found if len(found) == 1 else set()


@cached_by_form
def independent(program: FoldProgram) -> bool:
    """Whether no stage uses another."""
    return not any(node.kind == "stage" for node in ordered([stage.value for stage in program.stages]))


@cached_by_form
def read_once(program: FoldProgram) -> bool:
    """Whether one pass uses all elements, so that none need be held."""
    return independent(program) and not any(set(program.axes_of(made)) & set(program.fold) for made in program.outputs)


def shifts(program: FoldProgram, shape: Config) -> bool:
    """Whether rows at any address are loaded by shifted vectors. Single elements are faster for one vector per lane of one
    warp, and for rows that are read once and too long for registers."""
    return not shape.scattered and shape.threads * shape.pieces > 32 and (shape.held or not read_once(program))


@cached_by_form
def elements_in_registers(program: FoldProgram, without: frozenset[str] = frozenset()) -> int:
    """Elements that a thread can hold, without the inputs in `without`."""
    varying = [one for one in program.inputs if one.shape is None and varies(program, one) and one.name not in without]
    words = sum(ITEMSIZE[one.dtype] / 4 for one in varying) + numbers.TEMPORARY
    return int(numbers.REGISTERS / words)


def varies(program: FoldProgram, given: Input) -> bool:
    axes = range(len(program.shape)) if given.over is None else given.over
    return bool(set(axes) & set(program.fold))


@cached_by_form
def vector_of(program: FoldProgram) -> int:
    """The number of elements that fill 16 bytes of the narrowest tensor with a value per element, at most 8."""
    sizes = [ITEMSIZE[one.dtype] for one in program.inputs if one.shape is None and (one.over is None)]
    sizes += [ITEMSIZE[made.dtype] for made in program.outputs if len(program.axes_of(made)) == len(program.shape)]
    least = [ITEMSIZE[one.dtype] for one in program.inputs if one.shape is None and varies(program, one)]
    return max(min(8, 16 // min(sizes, default=4)), 4 // min(least, default=4))  # whole words of each tensor


@cached_by_form
def shared_by_outputs(program: FoldProgram) -> frozenset[str]:
    """Inputs that only outputs use and that are the same in all rows, such as a weight: they can be read after the stages."""
    used = {node.data for node in ordered([stage.value for stage in program.stages]) if node.kind == "input"}
    found = (one for one in program.inputs if one.shape is None and one.over is not None and varies(program, one))
    return frozenset(one.name for one in found if one.name not in used and not set(one.over or ()) & set(program.kept))


@cached_by_form
def _least_size(program: FoldProgram) -> int:
    """Bytes per element of the narrowest tensor that differs along a row."""
    sizes = [ITEMSIZE[one.dtype] for one in program.inputs if one.shape is None and varies(program, one)]
    sizes += [ITEMSIZE[made.dtype] for made in program.outputs if set(program.axes_of(made)) & set(program.fold)]
    return min(sizes, default=4)


def _of_shared(program: FoldProgram, vector: int) -> int:
    """A smaller vector if a shared input is wider than the others: neighbouring lanes then read neighbouring 16 bytes of it."""
    shared = shared_by_outputs(program)
    widest = max((ITEMSIZE[one.dtype] for one in program.inputs if one.name in shared), default=1)
    return min(vector, max(4, 16 // widest))


def _above(n: int) -> int:
    """The least power of two that is at least n."""
    return 1 << max(0, n - 1).bit_length()


_configs: AnswerCache[Config] = AnswerCache()


def config(program: FoldProgram, target: Target) -> Config:
    """Depends on the form and the extents of a row, not on the number of rows."""
    shape = program.shape
    row = tuple([shape[axis] for axis in program.fold])
    return _configs.get((program.form, row, target), lambda: _config_of(program, target))


def _config_of(program: FoldProgram, target: Target) -> Config:
    inner = inner_axes(program) or program.fold
    elements = math.prod(program.shape[axis] for axis in inner)
    segments = math.prod(program.shape[axis] for axis in program.fold) // max(1, elements)
    vector = vector_of(program)
    clusters = (1, *numbers.CLUSTERS) if target.sm_version >= 90 and not read_once(program) else (1,)
    if inner == program.fold:
        return _of_rows(program, vector, elements, clusters)
    vectors, most = max(1, -(-elements // vector)), max(1, elements_in_registers(program) // vector)
    return _of_groups(vector, vectors, min(most, numbers.MAX_PIECES), clusters, max(1, segments))


def _of_rows(program: FoldProgram, vector: int, elements: int, clusters: tuple[int, ...]) -> Config:
    shared = shared_by_outputs(program)
    wide = _of_shared(program, vector)
    vectors, held = -(-elements // wide), max(1, elements_in_registers(program, shared) // wide)
    if elements <= 2:
        few = max(2, 4 // _least_size(program))  # a pair, and whole words of each tensor
        found = _config(min(wide, few), _above(vectors), 1, 1)
        return replace(found, rows=numbers.ROWS_OF_A_PAIR) if elements in (2, 2 - read_once(program)) else found
    scattered, size = _scatters(program, wide, elements), _least_size(program)
    if scattered and elements <= min(scatter.most(size), 32 * elements_in_registers(program, shared)):
        lanes, narrow, pieces = scatter.dealt(elements, size)
        return replace(_config(narrow, lanes, pieces, 1), scattered=True)
    pieces = min(numbers.SHORT_PIECES, held) if read_once(program) and program.stages else 1
    if vectors <= 32 * pieces:
        lanes = max(_above(-(-vectors // pieces)), min(numbers.SHORT_LANES, _above(vectors)))
        return _config(wide, lanes, -(-vectors // lanes), 1)
    usual, most = min(numbers.USUAL_PIECES * vector // wide, numbers.MAX_PIECES, held), min(held, numbers.MAX_PIECES)
    least = numbers.LEAST_LANES if shared else 1
    few = min(usual, max(1, (vectors + least // 2) // least))
    for cluster in clusters:
        for pieces in sorted({few, most}):
            threads = 32 * -(-vectors // (32 * pieces * cluster))
            if threads <= numbers.MAX_THREADS:
                found = _config(wide, threads, -(-vectors // (threads * cluster)), cluster)
                fewer = _fewer(found, usual) if _streams(program) == 1 and not scattered else 1
                return replace(found, fewer=fewer, scattered=scattered)
    run = _run(vectors)
    return Config(wide, numbers.STREAM_THREADS, 1, numbers.STREAM_THREADS, 1, 1, held=False, run=run, scattered=scattered)


def _scatters(program: FoldProgram, vector: int, elements: int) -> bool:
    """Whether neighbouring lanes have neighbouring elements: in rows of wide or few elements that no vector divides evenly.
    Other unaligned rows use shifted vectors, or, if long and with a weight, vectors of single elements."""
    size, long = _least_size(program), elements > scatter.MOST_HALVES
    if elements % vector == 0 or elements <= scatter.least(size):
        return False
    if read_once(program):  # shorter ones pass through shared memory
        return size >= 4 and elements > scatter.most(size)
    return not (long and (size < 4 or shared_by_outputs(program)))


def _run(vectors: int) -> int:
    """Vectors per part: the least power of two with which a row has at most MAX_PARTS parts."""
    pieces, run = -(-vectors // numbers.STREAM_THREADS), numbers.LEAST_RUN
    while pieces > numbers.MAX_PARTS * run:
        run *= 2
    return run


def spreads(program: FoldProgram, shape: Config, target: Target) -> bool:
    """Whether all CTAs of the GPU share each row and exchange its states through the workspace. This pays for rows that stay in
    L2 until they are read again, and for so few rows that clusters would leave most SMs idle."""
    size = _spread_bytes(program) if shape.run else 0
    if not size:
        return False
    rows = math.prod(program.shape[axis] for axis in program.kept)
    held = rows * math.prod(program.shape[axis] for axis in program.fold) * size <= spread.HELD_IN_L2
    return rows < target.sm_count and (held or rows <= target.sm_count // spread.CLUSTERED)


@cached_by_form
def _spread_bytes(program: FoldProgram) -> int:
    """Bytes per element of a row over all inputs; 0 if the whole GPU never shares a row."""
    if read_once(program) or not independent(program) or placed(program):
        return 0
    return sum(ITEMSIZE[one.dtype] for one in program.inputs if one.shape is None and one.over is None)


@cached_by_form
def placed(program: FoldProgram) -> bool:
    """Whether the program uses an element's coordinates."""
    inner, outer = program.resolved
    return any(node.kind in ("coord", "read") for node in ordered((*inner, *outer)))


def parts_of(program: FoldProgram, shape: Config) -> int:
    """Number of parts of a row that is cut."""
    elements = math.prod(program.shape[axis] for axis in program.fold)
    pieces = -(-elements // (shape.vector * shape.threads))
    return -(-pieces // shape.run)


def most_ctas(target: Target) -> int:
    """Limit of the CTAs that share a row. A cluster of more than the portable size needs large GPCs."""
    if target.sm_version < 90:
        return 1
    return numbers.MAX_CTAS if target.sm_version in (90, 100, 103) else numbers.PORTABLE_CTAS


@cached_by_form
def _streams(program: FoldProgram) -> int:
    """Inputs that differ from row to row. With two, a row has enough loads in flight, whatever its number of lanes."""
    return sum(one.shape is None and (one.over is None or bool(set(one.over) & set(program.kept))) for one in program.inputs)


def _fewer(shape: Config, usual: int) -> int:
    """The largest power of two that divides the lanes into whole warps and leaves each lane at most `usual` vectors."""
    found = 1
    while shape.cluster == 1 and shape.threads % (64 * found) == 0 and 2 * found * shape.pieces <= usual:
        found *= 2
    return found


def _config(vector: int, threads: int, pieces: int, cluster: int) -> Config:
    return Config(vector, threads, max(1, numbers.LEAST_THREADS // threads), threads * cluster, pieces, 1, cluster)


def _of_groups(vector: int, vectors: int, most: int, clusters: tuple[int, ...], segments: int) -> Config:
    """The configuration if the lanes of a warp share a group."""
    lanes = min(32, _above(vectors))
    pieces = -(-vectors // lanes)
    if segments * lanes <= 32 and pieces <= most:
        threads = _above(segments * lanes)
        return Config(vector, threads, numbers.LEAST_THREADS // threads, lanes, pieces, 1)
    for cluster in clusters if pieces <= most else ():
        for waves in sorted({max(1, min(numbers.USUAL_PIECES, most) // pieces), max(1, most // pieces)}):
            threads = 32 * -(-segments * lanes // (32 * waves * cluster))
            if threads <= numbers.MAX_THREADS:
                found = -(-segments // (threads * cluster // lanes))
                return Config(vector, threads, max(1, numbers.LEAST_THREADS // threads), lanes, pieces, found, cluster)
    return Config(vector, numbers.STREAM_THREADS, 1, lanes, 1, 1, held=False)
