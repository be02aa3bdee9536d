"""KvShard: the assignment of the tokens of a cache to the ranks of a group. Lengths, pages and positions use the same
assignment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, cast

from pydantic import Field, model_validator

from opfacade.core.model import Model, Size, Written, contradiction
from opfacade.core.request_tables import NOWHERE
from opfacade.errors import Issue, from_issues
from opfacade.plans._world import WORLD, World

if TYPE_CHECKING:
    from torch import Tensor


class KvShard(Written):
    """Token p of a request is on rank (p div interleave) mod world, after the earlier tokens of this rank.

    The page table of a rank contains its own pages and lengths (`local_lens`), so a shard is a shorter request for attention,
    and every kernel supports it; `merge_across` combines the results of all ranks into the result for the whole cache. Rows
    that see different numbers of keys, such as drafts, must be separate requests with these lengths; they may share rows of the
    table. "replicated": each rank has all tokens, for example for layers with a window and for caches of draft models."""

    world: World = WORLD
    interleave: Size = Field(default=1, description="Number of consecutive tokens on one rank.")
    placement: Literal["sharded", "replicated"] = Field(
        default="sharded", description='"replicated": every rank has all tokens.'
    )

    @property
    def cuts(self) -> bool:
        """Whether a rank may lack tokens."""
        return self.placement == "sharded" and self.world > 1

    def local_lens(self, lens: Tensor, rank: int) -> Tensor:
        """The number of the first `lens` tokens that a rank has, for each element."""
        if not self.cuts:
            return lens.clone()
        period = self.world * self.interleave
        rest = (lens % period - rank * self.interleave).clamp(0, self.interleave)
        return lens // period * self.interleave + rest.to(lens.dtype)

    def owner(self, positions: Tensor) -> Tensor:
        """The rank of each position; 0 for a replicated cache, where every rank has all positions."""
        return positions // self.interleave % self.world if self.cuts else positions * 0

    def slots(self, positions: Tensor) -> Tensor:
        """The index of each position among the tokens of its rank."""
        if not self.cuts:
            return positions.clone()
        return positions // (self.world * self.interleave) * self.interleave + positions % self.interleave

    def positions(self, slots: Tensor, rank: int) -> Tensor:
        """The inverse of `slots` on one rank."""
        if not self.cuts:
            return slots.clone()
        run, place = slots // self.interleave, slots % self.interleave
        return (run * self.world + rank) * self.interleave + place

    def append_table(self, block_table: Tensor, rank: int, page_size: int) -> Tensor:
        """A block table of global pages for an append on one rank, from its own table [batch, pages]; pages of other ranks are
        NOWHERE. With this table and global lengths, an append rotates by global positions and stores only the tokens of this
        rank. Raises DescriptorError if the page size does not divide interleave; use `append_rows` then."""
        import torch

        if not self.cuts:
            return block_table.clone()
        if self.interleave % page_size:
            expected = f"a multiple of page_size={page_size}, for whole pages"
            issue = Issue("OPF-D005", "interleave", expected, str(self.interleave), kind="DescriptorError")
            raise from_issues("KvShard", "append_table", [issue])
        pages = torch.arange(block_table.shape[1] * self.world, device=block_table.device)
        first = pages * page_size
        own = block_table[:, self.slots(first) // page_size]
        return torch.where(self.owner(first) == rank, own, NOWHERE)

    def append_rows(self, append_indptr: Tensor, kv_lens: Tensor, rank: int, total_num_rows: int) -> ShardRows:
        """The new rows that one rank stores, for any interleave and page size. append_indptr i32 [batch + 1] and kv_lens i32
        [batch], after the append, are those of all ranks together. Nothing waits for the device, so a graph can capture it."""
        import torch

        row = torch.arange(total_num_rows, device=kv_lens.device)
        ends = append_indptr[1:].contiguous()
        request = torch.searchsorted(ends, row, right=True).clamp(max=max(0, len(kv_lens) - 1))
        new, inside = append_indptr.diff(), row < append_indptr[-1]
        positions = torch.where(inside, (kv_lens - ends)[request] + row, 0)
        own = inside & (self.owner(positions) == rank) if self.cuts else inside
        lens = self.local_lens(kv_lens, rank)
        counts = lens - self.local_lens(kv_lens - new, rank)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0).to(counts.dtype)])
        rows = (~own).to(torch.uint8).argsort(stable=True)
        return ShardRows(rows, positions[rows], indptr, lens)

    def counts(self, lens: Sequence[int]) -> tuple[int, ...]:
        """The number of tokens of each request on each rank."""
        import torch

        known = torch.tensor(lens, dtype=torch.int64)
        return tuple(int(self.local_lens(known, rank).sum()) for rank in range(self.world))

    def places(self, lens: Sequence[int]) -> Tensor:
        """i64: the index of each token, request by request, among the rows that an all_gather with `counts` gives."""
        import torch

        owned = [torch.arange(length) for length in lens]
        ranks = torch.cat([torch.arange(0), *[self.owner(positions) for positions in owned]])
        return ranks.argsort(stable=True).argsort()


class ShardRows(NamedTuple):
    """The new rows of one rank. rows, i64 [total_num_rows]: their indices among all new rows, and then those of rows that the
    append skips; positions: of each in its request, for a rotation; append_indptr and kv_lens: for an append of `rows` to the
    cache of this rank."""

    rows: Tensor
    positions: Tensor
    append_indptr: Tensor
    kv_lens: Tensor


class Shardable(Protocol):
    """The fields that decide whether states of a cache in shards can be merged."""

    @property
    def window_left(self) -> int: ...
    @property
    def sinks(self) -> bool: ...
    @property
    def return_lse(self) -> bool: ...
    @property
    def causal(self) -> bool: ...
    @property
    def q_len(self) -> int: ...


class Sharded(Model):
    """The field of decode descriptors whose cache may be sharded."""

    shard: KvShard | None = Field(default=None, description="How the cache is sharded over ranks; null: not sharded.")

    @model_validator(mode="after")
    def _sharded(self) -> Sharded:
        if self.shard is not None and self.shard.cuts:
            _refuse(cast("Shardable", self))
        return self


def _refuse(descriptor: Shardable) -> None:
    """Raise DescriptorError for what attention over a shard cannot give a merge, or would get wrong."""
    if descriptor.window_left >= 0:
        hint = 'Replicate the cache of layers with a window: KvShard(placement="replicated").'
        raise contradiction("window_left", "-1 for a sharded cache", descriptor.window_left, hint)
    if descriptor.sinks:
        raise contradiction("sinks", "False, because each rank would add them", True, "Pass them to merge_across.")
    if not descriptor.return_lse:
        raise contradiction("return_lse", "True, because merge_across needs lse", False)
    if getattr(descriptor, "q_len", 1) > 1 and descriptor.causal:
        hint = "Make each row a separate request with KvShard.local_lens of its limit."
        raise contradiction(
            "q_len", "1 for a sharded cache, because rows see different numbers of keys", descriptor.q_len, hint
        )
