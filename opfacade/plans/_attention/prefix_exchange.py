"""PrefixExchange: chooses what ranks exchange to prefill over a cached prefix that `KvShard` distributes: K and V, or the
queries, whichever has fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from opfacade.errors import Issue, from_issues
from opfacade.plans._attention.kv_shard import KvShard

_LSE = 4  # bytes


@dataclass(frozen=True, slots=True)
class PrefixExchange:
    """Bytes that a rank receives in each form; `kind` is the cheaper one.

    "keys": an all_gather of the cached K and V, in the order of `KvShard.places`, and then prefill as on one rank.
    "queries": an all_gather of q; each rank attends the keys of its shard without a causal mask, because new rows see the whole
    prefix; and `merge_across` combines the results with those over the new keys, as a further state.
    """

    keys: int
    queries: int

    @property
    def kind(self) -> Literal["keys", "queries"]:
        return "keys" if self.keys <= self.queries else "queries"

    @classmethod
    def of(cls, shard: KvShard, q_lens: Sequence[int], cached: Sequence[int], heads: Heads) -> PrefixExchange:
        """The bytes for q_lens new rows per request over `cached` tokens of it. Each rank keeps its heads of the merge
        (scatter="heads"), and new rows are divided equally. Raises DescriptorError for lists of unequal length."""
        if len(q_lens) != len(cached):
            issue = Issue(
                "OPF-D005", "cached", f"a number for each of {len(q_lens)} requests", str(len(cached)), kind="DescriptorError"
            )
            raise from_issues("PrefixExchange", "of", [issue])
        if not shard.cuts:
            return cls(0, 0)
        tokens = sum(length for rows, length in zip(q_lens, cached, strict=True) if rows)
        keys = tokens * heads.kv * 2 * heads.row_bytes
        queries = sum(q_lens) * heads.qo * (2 * heads.row_bytes + _LSE)
        return cls(*((shard.world - 1) * size // shard.world for size in (keys, queries)))


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers of query heads and KV heads, elements per head, and bytes per element."""

    qo: int
    kv: int
    head_dim: int
    itemsize: int = 2

    @property
    def row_bytes(self) -> int:
        return self.head_dim * self.itemsize
