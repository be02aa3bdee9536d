"""Prefill for sm_90a that splits long row tiles according to the lengths on the device (split=pieces)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from opfacade.backends.cuda.attention import prefill as first
from opfacade.backends.cuda.attention import prefill_sm90 as wgmma
from opfacade.backends.cuda.attention import prefill_sm90_fp8 as fp8
from opfacade.backends.cuda.attention.prefill import Prefill
from opfacade.core.candidate import COMPILER_TOO_OLD, Launcher, Reason
from opfacade.core.sku import KernelSku
from opfacade.core.target import Target

MODE = "pieces"
# A tile of fewer keys takes at most 0.3 ms (H100, head_dim 128), too little to split. Reading the lengths costs 6 us per launch
# and up to 3 % of its time, even if no tile is split.
LONG = 32768
# Without max_kv_len, requests of a pool with fewer tokens per request are assumed to be of similar length.
_MIN_TOKENS_EACH = 3072
# A batch of whole prompts with total_num_rows rows costs as much as one row tile of a request with 4 times as many tokens.
_TIMES_ROWS = 4


def may_cut(descriptor: Prefill, target: Target) -> bool:
    """True if the bounds allow a row tile that takes much longer than the rest of the batch. A window excludes that."""
    if descriptor.kv_split != "auto" or descriptor.batch_size < 2 or descriptor.window_left >= 0:
        return False
    tokens = descriptor.request_token_bound
    if descriptor.max_kv_len is None and tokens < _MIN_TOKENS_EACH * descriptor.batch_size:
        return False
    least = _least(descriptor)
    # The bounds split few row tiles (splits_of), which is faster if these splits are short.
    return tokens >= least and tokens // first.splits_of(descriptor, target)[1] >= least


def _least(descriptor: Prefill) -> int:
    return max(LONG, _TIMES_ROWS * descriptor.total_num_rows)


def too_short(descriptor: Prefill) -> Reason:
    return _too_short(descriptor.request_token_bound, _least(descriptor))


@lru_cache(maxsize=64)
def _too_short(tokens: int, least: int) -> Reason:
    """The reason, which is cached because both numbers are the same for many batch sizes."""
    allowed = f"{least} or more tokens, for one of several requests, with kv_split=auto and without a window"
    hint = "It cuts the long rows of an uneven batch; the candidate of whole tiles serves others."
    return Reason("OPF-S023", "max_kv_len", str(tokens), allowed, hint)


@dataclass(frozen=True, slots=True)
class PiecesCandidate:
    """The functions of a candidate with split=pieces. declined, sku_of, spec_of: functions of the kernel. rows: rows of its
    tile."""

    declined: Callable[[Prefill, Target], Sequence[Reason]]
    sku_of: Callable[[Prefill, Target, str], KernelSku]
    spec_of: Callable[[Prefill, Target, str], Any]
    rows: Callable[[Prefill], int]

    def declines(self, descriptor: Prefill, target: Target) -> Sequence[Reason]:
        reasons = self.declined(descriptor, target)
        # With only a compiler that is too old, this candidate's own reason is reported too, because a newer one may not
        # suffice.
        if (reasons and any(reason.code != COMPILER_TOO_OLD for reason in reasons)) or may_cut(descriptor, target):
            return reasons
        return [*reasons, too_short(descriptor)]

    def sku(self, descriptor: Prefill, target: Target) -> KernelSku:
        return self.sku_of(descriptor, target, MODE)

    def jit_spec(self, descriptor: Prefill, target: Target) -> Any:
        return self.spec_of(descriptor, target, MODE)

    def workspace(self, descriptor: Prefill, target: Target) -> int:
        """Bytes: for each SM two partials (o and lse in f32), and one counter per consumer warp:
        SMs * (8 * min(tile rows, total_num_rows * group) * (head_dim_vo + 1) + 8 * tile rows / 16)."""
        group, rows = descriptor.group_size, self.rows(descriptor)
        held = min(rows // group, descriptor.total_num_rows) * group
        return max(1, target.sm_count) * 8 * held * (descriptor.dim_vo + 1) + self.counters(descriptor, target)

    def counters(self, descriptor: Prefill, target: Target) -> int:
        """Bytes of the counters, which end the workspace."""
        return max(1, target.sm_count) * (8 * self.rows(descriptor) // 16)

    def launcher(self, descriptor: Prefill, target: Target, identity: KernelSku, allow_build: bool) -> Launcher:
        split = (MODE, max(1, target.sm_count), 0)  # the number of CTAs, one per SM, replaces the number of splits
        return first.launcher_of(self.jit_spec(descriptor, target), descriptor, split, identity, allow_build)


WGMMA = PiecesCandidate(wgmma.declines, wgmma.sku_of, wgmma.spec_of, lambda d: wgmma.tile_of(d.dim, d.kv_dtype).rows)
FP8 = PiecesCandidate(fp8.declines, fp8.sku_of, fp8.spec_of, lambda _: fp8.TILE_ROWS)
