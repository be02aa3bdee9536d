"""PrefillShares: the assignment of the new rows of a prefill to the ranks of a group, as additional requests for the existing
kernels.

A causal row sees all keys before it, so runs with equal numbers of rows are unequal work. Each request is divided into 2 *
world runs, and rank r gets run r and run 2 * world - 1 - r, an early run and a late run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from opfacade.errors import Issue, from_issues

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_RUN = 16  # rows: a run of fewer does not fill a tile


class Run(NamedTuple):
    """A virtual request: `rows` rows of a request, starting at its new row `first`, and the number of keys that the last of
    them sees."""

    request: int
    first: int
    rows: int
    keys: int

    @property
    def work(self) -> int:
        """The number of keys that its rows see in total."""
        return self.rows * self.keys - self.rows * (self.rows - 1) // 2


@dataclass(frozen=True, slots=True)
class PrefillShares:
    """The runs of each rank. starts: the index of the first new row of each request among the new rows of all requests.

    A rank computes q, k and v for its `rows`. One all_gather with `counts` transfers k and v of all rows; the append takes them
    in the order in which they arrive, with the runs of all ranks as requests (`gathered`). Then the rank computes attention for
    its runs: `q_indptr`, `kv_lens`, and rows `requests` of the page table. An all_gather of o and `places` give all rows."""

    starts: tuple[int, ...]
    runs: tuple[tuple[Run, ...], ...]

    @classmethod
    def zigzag(cls, q_lens: Sequence[int], kv_lens: Sequence[int], world: int) -> PrefillShares:
        """Divides q_lens new rows per request, after which the requests have kv_lens keys. Short requests are not divided; they
        go to the rank with the least work."""
        _refuse(q_lens, kv_lens, world)
        runs: list[list[Run]] = [[] for _ in range(world)]
        short = []
        for request, (rows, keys) in enumerate(zip(q_lens, kv_lens, strict=True)):
            if rows < 2 * world * _LEAST_RUN and world > 1:
                short.append(Run(request, 0, rows, keys))
                continue
            ends = [rows * i // (2 * world) for i in range(2 * world + 1)]
            for i, (first, stop) in enumerate(pairwise(ends)):
                runs[min(i, 2 * world - 1 - i)].append(Run(request, first, stop - first, keys - rows + stop))
        for run in sorted((run for run in short if run.rows), key=lambda run: -run.work):
            min(runs, key=lambda own: sum(one.work for one in own)).append(run)
        return cls((0, *accumulate(q_lens)), tuple(tuple(sorted(own)) for own in runs))

    @property
    def counts(self) -> tuple[int, ...]:
        """New rows of each rank."""
        return tuple(sum(run.rows for run in own) for own in self.runs)

    @property
    def balance(self) -> float:
        """The mean work of a rank divided by the largest work: the fraction of the ideal speed-up."""
        work = [sum(run.work for run in own) for own in self.runs]
        return sum(work) / (len(work) * max(work)) if max(work) else 1.0

    def rows(self, rank: int) -> Tensor:
        """i64: the indices of a rank's rows among all new rows, in the order of its runs."""
        import torch

        at = [torch.arange(self.starts[run.request] + run.first, self.starts[run.request] + run.first + run.rows)
              for run in self.runs[rank]]  # fmt: skip
        return torch.cat([torch.arange(0), *at])

    def places(self) -> Tensor:
        """i64: the index of each new row in the concatenated rows of rank 0, rank 1 and so on."""
        import torch

        return torch.cat([self.rows(rank) for rank in range(len(self.runs))]).argsort()

    def gathered(self) -> GatheredRows:
        """The runs of all ranks as requests of an append, for rows in the order in which an all_gather returns them."""
        runs = [run for own in self.runs for run in own]
        indptr = _ints([0, *accumulate(run.rows for run in runs)])
        return GatheredRows(indptr, _ints([run.keys for run in runs]), _ints([run.request for run in runs]).long())

    def requests(self, rank: int) -> Tensor:
        """i64: the request of each run of a rank, a row of the page table."""
        return _ints([run.request for run in self.runs[rank]]).long()

    def q_indptr(self, rank: int) -> Tensor:
        return _ints([0, *accumulate(run.rows for run in self.runs[rank])])

    def kv_lens(self, rank: int) -> Tensor:
        """i32: the keys that each run sees, including its own."""
        return _ints([run.keys for run in self.runs[rank]])


class GatheredRows(NamedTuple):
    """Requests of an append of gathered rows. append_indptr, kv_lens: i32, for the append; requests, i64: the row of the page
    table for each."""

    append_indptr: Tensor
    kv_lens: Tensor
    requests: Tensor


def _ints(values: Sequence[int]) -> Tensor:
    import torch

    return torch.tensor(values, dtype=torch.int32)


def _refuse(q_lens: Sequence[int], kv_lens: Sequence[int], world: int) -> None:
    wrong = None
    if not 1 <= world <= 72:
        wrong = ("world", "1 to 72 ranks", str(world))
    elif len(q_lens) != len(kv_lens):
        wrong = ("kv_lens", f"a number for each of {len(q_lens)} requests", str(len(kv_lens)))
    elif any(not 0 <= rows <= keys for rows, keys in zip(q_lens, kv_lens, strict=True)):
        wrong = ("kv_lens", "for each request its new rows, or more", str(tuple(kv_lens)))
    if wrong is not None:
        raise from_issues("PrefillShares", "zigzag", [Issue("OPF-D005", *wrong, kind="DescriptorError")])
