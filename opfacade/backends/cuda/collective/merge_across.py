"""merge_across in one launch: stores to the memory of peers, followed by the merge of `merge_states`.

Rows that do not fit in the group's arena take more launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from opfacade.backends.cuda import support
from opfacade.core.candidate import Reason
from opfacade.core.dtypes import ITEMSIZE
from opfacade.core.joined import Peers, in_lines
from opfacade.core.target import Target
from opfacade.plans.collective import MergeAcrossArgs, MergeAcrossDescriptor

if TYPE_CHECKING:
    from torch import Tensor

    from opfacade.jit.spec import JitSpec

MOST_WORLD, MOST_CTAS = 8, 128  # kMostRanks and kMostCtas of kernels/ranks/round_params.h
MOST_LINES = 9 << 17  # bytes of flagged lines that a rank receives; above it, bulk data with a fence are faster
MOST_HELD = 48 << 10  # maximum bytes of states from flagged lines that a CTA keeps in shared memory
_LINE = 16
Run = Callable[[MergeAcrossArgs, Peers], None]


def declines(d: MergeAcrossDescriptor, target: Target) -> Iterator[Reason]:
    """Reasons against this kernel."""
    if d.world > MOST_WORLD:
        yield Reason("OPF-S004", "world", str(d.world), f"at most {MOST_WORLD}, the GPUs of one host")
    for name in ("exchange_dtype", "out_dtype"):
        if getattr(d, name) not in (None, d.dtype):
            yield Reason("OPF-S002", name, str(getattr(d, name)), f"{d.dtype}, as dtype")
    if d.head_dim * ITEMSIZE[d.dtype] % _LINE:
        yield Reason("OPF-S004", "head_dim", str(d.head_dim), f"heads of whole lines of {_LINE} bytes")


def jit_spec(d: MergeAcrossDescriptor, target: Target) -> JitSpec:
    return support.spec_of("ranks/merge_across", support.pairs(dtype=d.dtype, head_dim=d.head_dim, sinks=d.sinks), target)


class Module(Protocol):
    """A compiled module of `jit_spec`."""

    def run(self, *given: object) -> None: ...


def runner(d: MergeAcrossDescriptor, module: Module) -> Run:
    """A function that launches the kernels of a call; module: compiled from `jit_spec`."""
    head = d.head_dim * ITEMSIZE[d.dtype]
    row = d.states * d.kept_heads * (head + 4)  # bytes per row that a rank sends to each rank

    def run(args: MergeAcrossArgs, peers: Peers) -> None:
        o_part, lse_part = args.o_part.contiguous(), args.lse_part.contiguous()
        o, lse = args.o.contiguous(), args.lse.contiguous()
        sinks = 0 if args.sinks is None else args.sinks.data_ptr()
        at_once = max(1, peers.place // row)
        for first in range(0, d.total_num_rows, at_once):
            rows = min(at_once, d.total_num_rows - first)
            words = [o_part[:, first:].data_ptr(), lse_part[:, first:].data_ptr(), o[first:].data_ptr(), lse[first:].data_ptr()]
            ctas = min(MOST_CTAS, rows * d.kept_heads)
            held = -(-rows * d.kept_heads // ctas) * d.states * d.world * (head + 4)
            flagged = _is_flagged(d, rows, peers) and held <= MOST_HELD
            words += [sinks, rows, d.total_num_rows, d.states, d.num_heads, d.kept_heads, int(flagged)]
            module.run(*peers.round_of(d), *words, ctas, held if flagged else 0)
        keep(o, args.o)
        keep(lse, args.lse)

    return run


def _is_flagged(d: MergeAcrossDescriptor, rows: int, peers: Peers) -> bool:
    """Whether states are sent in flagged lines, for which a log-sum-exp takes as much as 16 bytes of o."""
    size = d.states * rows * d.kept_heads * (d.head_dim * ITEMSIZE[d.dtype] + _LINE)
    return in_lines(size, d.world, MOST_LINES, peers.flagged)


def keep(made: Tensor, to: Tensor) -> None:
    """Copy a result that was written to a contiguous copy of its output."""
    if made is not to:
        to.copy_(made)
