"""Faults of calls over several ranks: a wrong order, a rank that is not named, or a map that loses tokens."""

from tests.mutation.mutant import host

OPS, TRIED = "backends/reference/collective.py", "tests/families/collective/test_reference.py"
NORMED, SUMMED = "backends/reference/_all_reduce_norm.py", "tests/families/collective/test_all_reduce_norm.py"
DRAWN, RACED = "backends/reference/_sample_across.py", "tests/families/collective/test_sample_across.py"
SENT, LINK, WATCH = "backends/reference/joined.py", "distributed/link.py", "distributed/watch.py"
LINKED = "tests/distributed/test_link.py"
AFTER, LISTED = "backends/cuda/collective/following.py", "tests/families/collective/test_kernels_of_calls.py"
DEALT, BALANCED = "plans/_attention/zigzag.py", "tests/distributed/test_prefill_shares.py"
SHARD, MAPPED = "plans/_attention/kv_shard.py", "tests/distributed/test_kv_shard.py"

FAULTS = (
    host(
        "ranks: an empty state is looked at",
        OPS,
        "(state_lse == -math.inf)[..., None], 0.0,",
        "state_lse.isnan()[..., None], 0.0,",
        TRIED,
    ),
    host("ranks: the largest logit of tiles is forgotten", OPS, "tile_sum * (tile_top - base).exp()", "tile_sum", TRIED),
    host("ranks: a sum is not rounded", SENT, "sum_in_order(parts).to(dtype)", "sum_in_order(parts)", SUMMED),
    host("ranks: rows of another rank are placed", NORMED, "to[rank : valid : d.world]", "to[: count]", SUMMED),
    host("ranks: ties of lower ranks are kept again", DRAWN, "earlier + own_before <", "own_before <", RACED),
    host("ranks: noise of a shard is that of the first", DRAWN, "call.a.shape[1], call.first)", "call.a.shape[1], 0)", RACED),
    host(
        "link: facts are not sent",
        LINK,
        "return (text * odd).sum(0, keepdim=True)",
        "return (text * 0).sum(0, keepdim=True)",
        LINKED,
    ),
    host("link: a rank that differs is not noted", LINK, "bitwise_or_(differs)", "bitwise_or_(differs & False)", LINKED),
    host(
        "link: outputs of a call that failed stay",
        SENT,
        "_fill_where(link.bad, tensor",
        "_fill_where(link.bad & False, tensor",
        LINKED,
    ),
    host(
        "watch: a call in flight is not seen",
        WATCH,
        "if self._link.in_flight else None",
        "if self._link.failed else None",
        LINKED,
    ),
    host("watch: a rank that is behind is not named", WATCH, "if begun < self._last[0])", "if begun > self._last[0])", LINKED),
    host("ranks: a plan after an exchange is always built", AFTER, "_PREFERENCES[allow_build]", "_PREFERENCES[True]", LISTED),
    host("ranks: a listed draw has no kernel", AFTER, "(*kernels(d, target), *of_group)", "of_group", LISTED),
    host("shares: runs see no cached key", DEALT, "keys - rows + stop", "stop", BALANCED),
    host("shares: a rank has neighbouring runs", DEALT, "min(i, 2 * world - 1 - i)", "i // 2", BALANCED),
    host(
        "shares: gathered runs end at their rows",
        DEALT,
        "_ints([run.keys for run in runs]), _",
        "_ints([run.rows for run in runs]), _",
        BALANCED,
    ),
    host("shard: a rank has the rest of another", SHARD, "lens % period - rank * self.interleave", "lens % period", MAPPED),
    host("shard: an append stores pages of other ranks", SHARD, "self.owner(first) == rank, own", "own >= 0, own", MAPPED),
)
