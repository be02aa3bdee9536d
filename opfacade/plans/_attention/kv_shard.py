"""KvShard: which rank of a group holds which token of a cache, as a value. One map for lengths, pages and positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from opfacade.core.model import Model, Size, Written, contradiction
from opfacade.core.request_tables import NOWHERE
from opfacade.errors import Issue, from_issues
from opfacade.plans._world import WORLD, World

if TYPE_CHECKING:
    from torch import Tensor


class KvShard(Written):
    """Token p of a request lies on rank (p div interleave) mod world, behind the earlier ones that this rank has.

    A page table of a rank has its own pages and lengths (`local_lens`), so attention over a shard is that of a shorter request,
    and every kernel takes it; `merge_across` makes of the results of all ranks that of the whole cache. Rows that see different
    limits, such as drafts, are requests of their own with the lengths of their limits; they may share rows of the table.
    "replicated": each rank has all tokens, as layers with a window and caches of draft models do.
    """

    world: World = WORLD
    interleave: Size = Field(default=1, description="Tokens in a row on one rank.")
    placement: Literal["sharded", "replicated"] = Field(
        default="sharded", description='"replicated": every rank has all tokens.'
    )

    @property
    def cuts(self) -> bool:
        """Whether a rank lacks tokens."""
        return self.placement == "sharded" and self.world > 1

    def local_lens(self, lens: Tensor, rank: int) -> Tensor:
        """How many of the first lens tokens a rank has, element by element."""
        if not self.cuts:
            return lens.clone()
        period = self.world * self.interleave
        rest = (lens % period - rank * self.interleave).clamp(0, self.interleave)
        return lens // period * self.interleave + rest.to(lens.dtype)

    def owner(self, positions: Tensor) -> Tensor:
        """The rank of each position; 0 of a replicated cache, whose ranks all have it."""
        return positions // self.interleave % self.world if self.cuts else positions * 0

    def slots(self, positions: Tensor) -> Tensor:
        """The place of each position among the tokens of its rank."""
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
        """A block table of global pages for an append on one rank, made of its own [batch, pages]: other ranks' are NOWHERE.

        An append with it and global lengths rotates by global positions and stores only tokens of this rank. DescriptorError
        where pages do not divide interleave: then pass each rank the rows that it owns.
        """
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


class Sharded(Model):
    """The field of decodes whose cache may be sharded."""

    shard: KvShard | None = Field(default=None, description="How the cache is sharded over ranks; null: not sharded.")

    @model_validator(mode="after")
    def _sharded(self) -> Sharded:
        if self.shard is not None and self.shard.cuts:
            _refuse(self)
        return self


def _refuse(descriptor: Any) -> None:
    """Raise DescriptorError for what attention over a shard cannot give a merge, or would get wrong."""
    if descriptor.window_left >= 0:
        hint = 'Replicate the cache of layers with a window: KvShard(placement="replicated").'
        raise contradiction("window_left", "-1 in a cache that is cut", descriptor.window_left, hint)
    if descriptor.sinks:
        raise contradiction("sinks", "false: each rank would count them", True, "Pass them to merge_across.")
    if not descriptor.return_lse:
        raise contradiction("return_lse", "true, for merge_across needs lse", False)
    if getattr(descriptor, "q_len", 1) > 1 and descriptor.causal:
        hint = "Make each row a request with KvShard.local_lens of its own limit."
        raise contradiction("q_len", "1 in a cache that is cut: rows see different numbers of keys", descriptor.q_len, hint)
