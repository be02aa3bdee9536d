"""all_reduce_norm in one launch: stores to the memory of peers, a sum in the order of ranks, and the fold of the norm.

The kernel contains the same program as the kernel of the norm, so a row gets the same bits. Rows that do not fit in the group's
arena take more launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from opfacade.backends.cuda import support
from opfacade.backends.cuda.folds import engine
from opfacade.backends.cuda.folds.layout import RowLayout
from opfacade.backends.cuda.programs import source
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.joined import Peers, in_lines
from opfacade.core.target import Target
from opfacade.plan import Plan
from opfacade.plans._collective.all_reduce_norm import AllReduceNormArgs, AllReduceNormDescriptor
from opfacade.plans._folds.op import FoldOp

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

MOST_WORLD, MOST_CTAS = 8, 128  # kMostRanks and kMostCtas of kernels/ranks/round_params.h
_LAYOUT = RowLayout()
MOST_LINES = 1 << 18  # bytes of flagged lines that a rank receives; above it, bulk data with a fence are faster
MOST_HELD = 48 << 10  # maximum bytes of sums that a CTA keeps in shared memory until the fold reads them
_LINE = 16
_NOTHING = 0xFF  # a NaN of every float type consists of such bytes
Run = Callable[[AllReduceNormArgs, Peers], None]


def problem_of(d: AllReduceNormDescriptor) -> Any:
    """The norm in the kernel, for the maximum number of rows of a rank. The kernel itself counts valid rows."""
    mine = d.of_own_rows() if d.two_shot else d.model_copy(update={"num_valid": False})
    return mine.normed_rows(d.own_rows if d.two_shot else d.total_num_rows)


def declines(d: AllReduceNormDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons against this kernel."""
    if d.world > MOST_WORLD:
        yield Reason("OPF-S004", "world", str(d.world), f"at most {MOST_WORLD}, the GPUs of one host")
    if d.norm == "none":
        yield Reason("OPF-S003", "norm", "none", "rms, layer")
        return
    if d.quant is not None and d.quant.scale == "static" and d.quant.scale_dtype != "f32":
        yield Reason("OPF-S002", "quant.scale_dtype", d.quant.scale_dtype, "f32 with a static scale")
    if target.sm_version < support.MIN_SM:
        return
    problem = problem_of(d)
    if Plan.select(problem, target=target).sku.impl != _LAYOUT.impl:
        yield Reason("OPF-S003", "quant", str(d.quant), "one whose norm is a fold of rows")
        return
    shape = _LAYOUT.config(problem.folded(), target)
    if shape.cluster > 1 or not shape.held:
        yield Reason("OPF-S004", "hidden", str(d.hidden), "a row that the registers of one CTA hold")


def jit_spec(d: AllReduceNormDescriptor, target: Target) -> JitSpec:
    problem = problem_of(d)
    found = engine.constants(_LAYOUT, problem.folded(), problem.dims(), target)
    return support.spec_of("ranks/sum_fold", support.pairs(**found, world=d.world, two_shot=d.two_shot), target)


class Made(NamedTuple):
    """A tensor that the fold writes. step, inner: strides of rows and of elements. width: elements per row."""

    tensor: Tensor
    step: int
    inner: int
    width: int
    travels: bool

    @property
    def row_bytes(self) -> int:
        return self.width * self.tensor.element_size()


def runner(d: AllReduceNormDescriptor, target: Target, module: Any) -> Run:
    """A function that launches the kernels of a call; module: compiled from `jit_spec`."""
    form = _Form.of(d, target)

    def run(args: AllReduceNormArgs, peers: Peers) -> None:
        call = _Call(form, args, peers)
        for first in range(0, d.total_num_rows, call.rows_at_once):
            module.run(*call.arguments(first, min(d.total_num_rows, first + call.rows_at_once)))
        call.keep()

    return run


@dataclass(frozen=True, slots=True)
class _Form:
    """The facts that all calls share. rows: rows that a CTA processes at once. pitch: bytes from row to row in an arena."""

    d: AllReduceNormDescriptor
    problem: FoldOp
    rows: int
    pitch: int

    @staticmethod
    def of(d: AllReduceNormDescriptor, target: Target) -> _Form:
        problem = cast(FoldOp, problem_of(d))
        rows = int(_LAYOUT.config(problem.folded(), target).rows)
        return _Form(d, problem, rows, _aligned(d.hidden * ITEMSIZE[d.dtype]))


class _Call:
    """The tensors of one call, copied if the elements of a row are not contiguous."""

    def __init__(self, form: _Form, args: AllReduceNormArgs, peers: Peers) -> None:
        self._form, self._d, self._args, self._peers = form, form.d, args, peers
        self._rank = 0 if args.group is None else args.group.rank
        self._copied: list[tuple[Tensor, Tensor]] = []
        written = {name for name, spec in form.d.operands().items() if spec.written}
        self._tensors = {
            name: self._near(name, getattr(args, name), name in written)
            for name in form.d.operands()
            if getattr(args, name) is not None
        }
        self._made = self._results()
        self.rows_at_once = self._slots_at_once() * (self._d.world if self._d.two_shot else 1)

    def keep(self) -> None:
        """Copy results that were written to copies of their outputs."""
        for to, made in self._copied:
            to.copy_(made)

    def arguments(self, first: int, last: int) -> list[Any]:
        """The arguments for rows first .. last - 1, in the order of csrc/ranks/sum_fold.cc.jinja."""
        d, x = self._d, self._tensors["x"]
        slots = -(-(last - first) // d.world) if d.two_shot else last - first
        program = self._form.problem.folded()
        extents = (slots, *program.shape[1:])
        size = x.element_size()
        ctas = min(-(-slots // self._form.rows), MOST_CTAS)
        words = [x[first:].data_ptr(), *self._facts(), last - first, first, d.total_num_rows]
        flagged = self._is_flagged(slots)
        words += [d.hidden * size, x.stride(0) * size, self._form.pitch, ctas, int(flagged), self._held(slots, ctas) * flagged]
        scalars = source.arguments(program)[len(extents) :]
        given = self._of_fold(first, slots)
        return [*given, *self._peers.round_of(d), *extents, *scalars, *words, *self._table(first, slots)]

    def _is_flagged(self, rows: int) -> bool:
        """Whether rows are sent in flagged lines. The decision is the same on all ranks, because it does not depend on
        tensors."""
        whole = self._form.pitch == self._d.hidden * ITEMSIZE[self._d.dtype]
        size = rows * self._form.pitch
        return not self._d.two_shot and whole and in_lines(size, self._d.world, MOST_LINES, self._peers.flagged)

    def _held(self, rows: int, ctas: int) -> int:
        """Bytes of shared memory for the sums of a CTA; 0 if they do not fit."""
        size = -(-rows // (ctas * self._form.rows)) * self._form.rows * self._form.pitch
        return size if size <= MOST_HELD else 0

    def _facts(self) -> tuple[int, int]:
        """Addresses of num_valid, and of the static scale, which must be equal on all ranks; 0 if absent."""
        quant, valid = self._d.quant, self._args.num_valid
        static = self._args.scale if quant is not None and quant.scale == "static" else None
        return (0 if valid is None else valid.data_ptr(), 0 if static is None else static.data_ptr())

    def _of_fold(self, first: int, slots: int) -> list[Tensor]:
        """The tensors of the fold, in the order of its operands. In two steps, only the strides are used of tensors that are
        sent."""
        return [self._lying(name, first, slots) for name in self._form.problem.operands()]

    def _lying(self, name: str, first: int, slots: int) -> Tensor:
        d, tensor = self._d, self._tensors[name]
        if name in ("weight", "bias") or (name == "scale" and d.quant is not None and d.quant.scale == "static"):
            return tensor
        if name == "residual" and d.two_shot:
            return tensor[first // d.world :] if d.residual == "row_sharded" else tensor[first + self._rank :: d.world]
        if name == "scale" and d.quant is not None and d.quant.scale_layout != "row":
            groups = tensor.shape[0]
            return tensor.as_strided((slots, groups), (groups, 1)) if d.two_shot else tensor[:, first:]
        return tensor[first : first + slots]

    def _results(self) -> list[Made]:
        program = self._form.problem.folded()
        names = [program.overwritten.get(one.name, one.name) for one in program.outputs]
        return [self._result(name) for name in names]

    def _result(self, name: str) -> Made:
        d, tensor = self._d, self._tensors[name]
        travels = d.two_shot and not (name == "residual" and d.residual == "row_sharded")
        if name == "scale" and d.quant is not None and d.quant.scale_layout != "row":
            return Made(tensor, tensor.stride(1), tensor.stride(0), tensor.shape[0], travels)
        count, inner = (1, 1) if tensor.ndim == 1 else (tensor.shape[1], tensor.stride(1) if tensor.shape[1] > 1 else 1)
        return Made(tensor, tensor.stride(0), inner, count, travels)

    def _slots_at_once(self) -> int:
        """Maximum number of rows of a rank that fit in a slot of the arena."""
        lines = _LINE * len(self._made)  # maximum bytes of alignment padding
        widest = max(self._form.pitch, sum(one.row_bytes for one in self._made if one.travels))
        return max(1, (self._peers.place - lines) // widest)

    def _table(self, first: int, slots: int) -> Iterator[int]:
        """The table of results, with eight words per result."""
        offset = 0
        for one in self._made:
            size = one.tensor.element_size()
            row = first if not self._d.two_shot or one.travels else first // self._d.world
            yield from (one.tensor.data_ptr() + row * one.step * size, one.step * size, one.inner * size, offset)
            yield from (one.width, size, self._nothing(one.tensor), int(one.travels))
            offset += _aligned(slots * one.row_bytes) if one.travels else 0

    def _nothing(self, tensor: Tensor) -> int:
        floats = tensor.is_floating_point()
        return _NOTHING if floats or self._args.group is None else self._args.group.fill_id & 0xFF

    def _near(self, name: str, tensor: Tensor, written: bool) -> Tensor:
        """The tensor, or a copy in which the elements of a row are contiguous."""
        if tensor.ndim < 2 or tensor.shape[1] == 1 or tensor.stride(1) == 1 or name == "scale":
            return tensor
        near = tensor.contiguous()
        if written:
            self._copied.append((tensor, near))
        return near


def _aligned(size: int) -> int:
    return -(-size // _LINE) * _LINE


def module_of(spec: JitSpec, allow_build: bool, label: str) -> Any:
    """The compiled module, loaded on the current device, because a graph capture cannot load it."""
    import torch

    from opfacade import jit

    module = jit.load(spec, allow_build=allow_build, label=label)
    if torch.cuda.is_available():
        module.prepare(torch.cuda.current_device())
    return module


__all__: Sequence[str] = ["declines", "jit_spec", "module_of", "problem_of", "runner"]
