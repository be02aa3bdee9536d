"""Prefill for sm_90a whose long tiles are cut by the lengths on the device: candidates before those of whole tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention import prefill_sm90_fp8 as fp8
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.core.candidate import Launcher, Reason
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

MODE = "pieces"
# A tile of fewer keys takes 0.3 ms at most (H100, head_dim 128), so no batch waits long for it. Cut or not, the search for cuts
# costs 6 us a launch and up to 3 % of it.
LONG = 32768
# Where max_kv_len is not given, requests of a pool with fewer tokens for each are taken to be alike.
_OF_EACH = 3072
# Rows of a batch that are whole prompts see so many keys that a request of 4 times as many tokens is no longer than the rest.
_TIMES_ROWS = 4


def may_cut(descriptor: Prefill, target: Target) -> bool:
    """Whether bounds let one request of a batch be much longer than the rest takes. A window makes all alike."""
    if descriptor.kv_split != "auto" or descriptor.batch_size < 2 or descriptor.window_left >= 0:
        return False
    tokens = descriptor.request_token_bound
    if descriptor.max_kv_len is None and tokens < _OF_EACH * descriptor.batch_size:
        return False
    # Tiles of few rows are cut by bounds alone; where those parts are short, that is quicker.
    return tokens // first.splits_of(descriptor, target)[1] >= max(LONG, _TIMES_ROWS * descriptor.total_num_rows)


@dataclass(frozen=True, slots=True)
class Cut:
    """The functions of a candidate. plain: those of whole tiles; rows: of a tile, as the warpgroups that compute have them."""

    declined: Callable[[Prefill, Target], Sequence[Reason]]
    sku_of: Callable[[Prefill, Target, str], KernelSku]
    spec_of: Callable[[Prefill, Target, str], Any]
    rows: Callable[[Prefill], int]

    def declines(self, descriptor: Prefill, target: Target) -> Sequence[Reason]:
        reasons = self.declined(descriptor, target)
        if reasons or may_cut(descriptor, target):
            return reasons
        expected = f"auto, no window, and one request of a batch may have {LONG} tokens and {_TIMES_ROWS} times total_num_rows"
        return [Reason("OPF-S023", "kv_split", str(descriptor.kv_split), expected, "max_kv_len says how many it may have.")]

    def sku(self, descriptor: Prefill, target: Target) -> KernelSku:
        return self.sku_of(descriptor, target, MODE)

    def jit_spec(self, descriptor: Prefill, target: Target) -> Any:
        return self.spec_of(descriptor, target, MODE)

    def workspace(self, descriptor: Prefill, target: Target) -> int:
        """For each SM two parts of a tile, o and lse in f32, and a counter for each warp that computes, in bytes
        SMs * (8 * min(tile rows, total_num_rows * group) * (head_dim_vo + 1) + 8 * tile rows / 16)."""
        group, rows = descriptor.group_size, self.rows(descriptor)
        held = min(rows // group, descriptor.total_num_rows) * group
        return max(1, target.sm_count) * 8 * held * (descriptor.dim_vo + 1) + self.counters(descriptor, target)

    def counters(self, descriptor: Prefill, target: Target) -> int:
        """Bytes of the counters, which end the workspace."""
        return max(1, target.sm_count) * (8 * self.rows(descriptor) // 16)

    def launcher(self, descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
        split = (MODE, max(1, target.sm_count), 0)  # a block for each SM in place of splits
        return first.launcher_of(self.jit_spec(descriptor, target), descriptor, split, identity, allow_build)


WGMMA = Cut(wgmma.declines, wgmma.sku_of, wgmma.spec_of, lambda d: wgmma.tile_of(d.dim, d.kv_dtype).rows)
FP8 = Cut(fp8.declines, fp8.sku_of, fp8.spec_of, lambda _: fp8.TILE_ROWS)
