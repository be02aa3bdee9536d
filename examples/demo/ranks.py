"""The demo over several ranks: a toy model whose cache and vocabulary are sharded, and the same model on one rank.

Every rank decodes a few tokens of a batch: attention over its shard of the cache, a merge, logits of its shard of the
vocabulary, and a draw. Tokens must be those that one rank draws from the whole.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opfacade.core.joined import Joined
from opfacade.core.target import Target
from opfacade.distributed import Group
from opfacade.plan import Plan
from opfacade.plans.attention import (
    BatchPagedDecodeArgs,
    BatchPagedDecodeDescriptor,
    BatchPagedDecodePlan,
    KvShard,
    PagedKvCacheDescriptor,
)
from opfacade.plans.collective import (
    MergeAcrossArgs,
    MergeAcrossDescriptor,
    MergeAcrossPlan,
    SampleAcrossArgs,
    SampleAcrossDescriptor,
    SampleAcrossPlan,
)
from opfacade.plans.kv_cache import PagedKvAppendArgs, PagedKvAppendDescriptor, PagedKvAppendPlan, even_indptr
from opfacade.plans.sampling import SampleArgs, SampleDescriptor, SamplePlan

if TYPE_CHECKING:
    from torch import Tensor

_BATCH, _HEADS, _KV_HEADS, _DIM, _PAGE, _VOCAB = 4, 4, 2, 64, 16, 300
_PROMPT, _STEPS = 45, 8  # tokens of a request at the start, and tokens that the demo draws
_CPU = Target.cpu()  # tensors and groups are on the host, even on a machine with GPUs
_CHUNK = 16  # consecutive tokens on one rank, which form one state of the merge


@dataclass(frozen=True, slots=True)
class Weights:
    """The toy model, equal on all ranks: one vector per token, projections, and an output matrix."""

    embedding: Tensor
    qkv: Tensor
    out: Tensor

    @classmethod
    def drawn(cls, seed: int) -> Weights:
        import torch

        random = torch.Generator().manual_seed(seed)
        width = _HEADS * _DIM
        shapes = ((_VOCAB, width), (width, (_HEADS + 2 * _KV_HEADS) * _DIM), (width, _VOCAB))
        embedding, qkv, out = (torch.randn(*shape, generator=random) for shape in shapes)
        return cls(embedding, qkv * width**-0.5, out * (3 * width**-0.5))


class Ranks:
    """The plans and the cache of one rank."""

    def __init__(self, weights: Weights, world: int, rank: int) -> None:
        import torch

        self.weights, self.world, self.rank = weights, world, rank
        self.shard = KvShard(world=world, interleave=_CHUNK)
        self.pages = -(-(_PROMPT + _STEPS) // (_CHUNK * world))  # of one request on one rank
        pool = PagedKvCacheDescriptor(
            num_total_pages=_BATCH * self.pages,
            page_size=_PAGE,
            num_kv_heads=_KV_HEADS,
            head_dim=_DIM,
            dtype="f32",
            layout="NHD",
        )
        empty = torch.zeros(_BATCH * self.pages, _PAGE, _KV_HEADS, _DIM)
        self.k_data, self.v_data = empty, empty.clone()
        self.table = torch.arange(_BATCH * self.pages, dtype=torch.int32).view(_BATCH, self.pages)
        self.plans = _Plans(world, self.pages, pool, self.shard)

    def step(self, tokens: Tensor, lens: Tensor, offset: int, group: Joined | None) -> Tensor:
        """The next token of each request. tokens [batch, n]: the new tokens; lens: the total tokens including them."""
        new = (self.weights.embedding[tokens.long()] @ self.weights.qkv).view(_BATCH, tokens.shape[1], -1, _DIM)
        q, k, v = new.tensor_split([_HEADS, _HEADS + _KV_HEADS], 2)
        self._append(k.flatten(0, 1), v.flatten(0, 1), lens, tokens.shape[1])
        o = self._attend(q[:, -1].contiguous(), lens, group)
        return self._draw(self._logits(o.flatten(1)), offset, group)

    def _append(self, k: Tensor, v: Tensor, lens: Tensor, count: int) -> None:
        plan = PagedKvAppendPlan.select(self.plans.append(count), target=_CPU)
        plan.run(
            PagedKvAppendArgs(
                k_new=k.contiguous(), v_new=v.contiguous(), append_indptr=even_indptr(_BATCH, count, device="cpu"),
                k_data=self.k_data, v_data=self.v_data, kv_lens=lens,
                block_table=self.shard.append_table(self.table, self.rank, _PAGE),
            )
        )  # fmt: skip

    def _attend(self, q: Tensor, lens: Tensor, group: Joined | None) -> Tensor:
        """Each chunk of this rank is one request and gives one state, so the bits do not depend on the number of ranks."""
        import torch

        local = self.shard.local_lens(lens, self.rank)
        starts = torch.arange(self.pages, dtype=torch.int32)[:, None] * _CHUNK
        lengths = (local[None] - starts).clamp(0, _CHUNK).flatten()
        o_part, lse_part = torch.zeros(self.pages * _BATCH, _HEADS, _DIM), torch.zeros(self.pages * _BATCH, _HEADS)
        BatchPagedDecodePlan.select(self.plans.decode, target=_CPU).run(
            BatchPagedDecodeArgs(
                q=q.repeat(self.pages, 1, 1), k_data=self.k_data, v_data=self.v_data, kv_lens=lengths,
                block_table=self.table.T.reshape(-1, 1).contiguous(), o=o_part, lse=lse_part,
            )
        )  # fmt: skip
        parts = (self.pages, _BATCH, _HEADS)
        args = MergeAcrossArgs(
            o_part=o_part.view(*parts, _DIM), lse_part=lse_part.view(parts), group=group,
            o=torch.zeros(_BATCH, _HEADS, _DIM), lse=torch.zeros(_BATCH, _HEADS),
        )  # fmt: skip
        MergeAcrossPlan.select(self.plans.merge, target=_CPU).run(args)
        return args.o

    def _logits(self, x: Tensor) -> Tensor:
        """The logits of this rank's columns."""
        import torch

        shard = self.plans.draw.shard
        own = self.weights.out[:, self.rank * shard : (self.rank + 1) * shard]
        # One column at a time, because a column's sums must not depend on the number of columns.
        columns = [(x * column).sum(1) for column in own.T]
        padding = [torch.zeros(_BATCH)] * (shard - len(columns))
        return torch.stack(columns + padding, 1)

    def _draw(self, logits: Tensor, offset: int, group: Joined | None) -> Tensor:
        """With one rank, uses the op without ranks."""
        import torch

        token, valid = torch.zeros(_BATCH, dtype=torch.int32), torch.zeros(_BATCH, dtype=torch.uint8)
        seed, offsets = torch.arange(_BATCH), torch.full((_BATCH,), offset)
        top_k, top_p = torch.full((_BATCH,), 40, dtype=torch.int32), torch.full((_BATCH,), 0.9)
        if group is None:
            alone = SampleArgs(
                logits=logits, seed=seed, offset=offsets, top_k=top_k, top_p=top_p, token=token, valid=valid
            )  # fmt: skip
            drawn = SampleDescriptor(total_num_rows=_BATCH, vocab=_VOCAB, top_k=True, top_p=True, temperature=False)
            SamplePlan.select(drawn, target=_CPU).run(alone)
        else:
            args = SampleAcrossArgs(
                logits=logits, seed=seed, offset=offsets, top_k=top_k, top_p=top_p, token=token, valid=valid, group=group
            )  # fmt: skip
            SampleAcrossPlan.select(self.plans.draw, target=_CPU).run(args)
        return token


class _Plans:
    """The descriptors of a rank. `Group.reserve` gets the descriptors that have a field `world`."""

    def __init__(self, world: int, pages: int, pool: PagedKvCacheDescriptor, shard: KvShard) -> None:
        self._pool, self._world = pool, world
        self.draw = SampleAcrossDescriptor(
            world=world,
            total_num_rows=_BATCH,
            vocab=_VOCAB,
            shard=-(-_VOCAB // world),
            top_k=True,
            max_top_k=40,
            top_p=True,
            temperature=False,
        )
        self.merge = MergeAcrossDescriptor(
            world=world, states=pages, total_num_rows=_BATCH, num_heads=_HEADS, head_dim=_DIM, dtype="f32"
        )
        self.decode = BatchPagedDecodeDescriptor(
            batch_size=_BATCH * pages, num_qo_heads=_HEADS, paged_kv=pool, page_table="block", shard=shard
        )

    def append(self, rows: int) -> PagedKvAppendDescriptor:
        """rows: the number of new rows per request."""
        bound = self._pool.num_total_pages * self._world
        return PagedKvAppendDescriptor(
            batch_size=_BATCH, total_num_rows=_BATCH * rows, paged_kv=self._pool, page_table="block", max_kv_indices=bound
        )


def generate(ranks: Ranks, group: Group | None) -> list[list[int]]:
    """The tokens that each step draws for the batch."""
    import torch

    if group is not None:
        group.reserve([Plan.select(d, target=_CPU) for d in (ranks.plans.merge, ranks.plans.draw)])
    tokens = (torch.arange(_BATCH * _PROMPT, dtype=torch.int32) * 37 % _VOCAB).view(_BATCH, _PROMPT)
    drawn = []
    for step in range(_STEPS):
        lens = torch.full((_BATCH,), _PROMPT + step, dtype=torch.int32)
        tokens = ranks.step(tokens, lens, step, group)[:, None]
        drawn.append(tokens[:, 0].tolist())
    return drawn


def compare(group: Group, say: Callable[[str], None]) -> bool:
    """Whether this rank draws the same tokens together with the others as alone."""
    weights = Weights.drawn(7)
    alone = generate(Ranks(weights, 1, 0), None)
    together = generate(Ranks(weights, group.world, group.rank), group)
    _say(alone, together, group, say)
    return alone == together


def _say(alone: Sequence[Sequence[int]], together: Sequence[Sequence[int]], group: Group, say: Callable[[str], None]) -> None:
    if group.rank == 0:
        say(f"tokens of request 0: {[step[0] for step in together]}")
        say(f"{len(together)} steps of {_BATCH} requests on {group.world} ranks: {_verdict(alone == together)}")
        say(f"{group.statistics.calls} rounds, {group.statistics.bytes} bytes sent by rank 0")


def _verdict(same: bool) -> str:
    return "the tokens of one rank" if same else "OTHER TOKENS than one rank"


def serve(world: int) -> bool:
    """Runs `compare` in `world` processes on this machine, with gloo. Returns whether all drew the same tokens as one rank."""
    with tempfile.TemporaryDirectory() as folder:
        spawn = multiprocessing.get_context("spawn")
        processes = [spawn.Process(target=_process, args=(rank, world, folder)) for rank in range(world)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return len(list(Path(folder).glob("same-*"))) == world


def _process(rank: int, world: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    assert dist.group.WORLD is not None
    with Group(dist.group.WORLD) as group:
        if compare(group, print):
            Path(f"{folder}/same-{rank}").touch()
    dist.destroy_process_group()
