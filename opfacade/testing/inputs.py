"""Random arguments for a descriptor. Memory that a kernel must not use is NaN: unused pages, slots past the end, outputs."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opfacade.core.descriptor import Descriptor
from opfacade.core.dtypes import torch_dtype
from opfacade.core.operands import TensorSpec
from opfacade.plans._attention.paging import PagePool
from opfacade.testing.bits import drawn, fill

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class DrawnLengths:
    """Rows of q (or new rows) and of K for each request; None is drawn at random. Requests share pages where the pool has
    fewer than they take. valid: what counts of valid rows say, at most the rows there are; None is drawn at random."""

    q: Sequence[int] | None = None
    kv: Sequence[int] | None = None
    valid: int | None = None


def make_args(
    descriptor: Descriptor[Any],
    seed: int = 0,
    device: str | torch.device = "cpu",
    lengths: DrawnLengths | None = None,
    interleaved: bool = False,
) -> Any:
    """A bundle of arguments that `run` accepts.

    interleaved: K and V are views of one buffer, and a block table is a slice of a wider one, so that no stride is the
    compact one.
    """
    import torch

    maker = _Maker(descriptor, random.Random(seed), torch.Generator(device=device).manual_seed(seed), torch.device(device))
    return maker.make(lengths or DrawnLengths(), interleaved)


def split_total(rng: random.Random, total: int, parts: int) -> list[int]:
    """Lengths that add up to a total, unevenly, with some zeros."""
    weights = [rng.choice((0.0, 0.2, 1.0, 5.0)) * rng.random() for _ in range(parts)]
    scale = sum(weights)
    lengths = [int(total * w / scale) if scale else 0 for w in weights]
    if parts:
        lengths[rng.randrange(parts)] += total - sum(lengths)
    return lengths


def draw_kv_lengths(rng: random.Random, batch: int, pages: int, page_size: int, least: Sequence[int]) -> list[int]:
    """Lengths in tokens whose pages fit, each at least `least`, with empty requests and full last pages among them."""
    spare = pages - sum(-(-n // page_size) for n in least)
    lengths = []
    for request in range(batch):
        mine = -(-least[request] // page_size)
        fair = max(0, spare) if rng.random() < 0.3 else max(0, spare // max(1, batch))
        extra = 0 if rng.random() < 0.1 else rng.randint(min(1, fair), fair)
        spare -= extra
        top = (mine + extra) * page_size
        bottom = min(top, max(least[request], top - page_size + 1))
        lengths.append(rng.choice((top, rng.randint(bottom, top))))
    return lengths


class _Maker:
    def __init__(self, descriptor: Any, rng: random.Random, generator: torch.Generator, device: torch.device) -> None:
        self.descriptor, self.rng, self.generator, self.device = descriptor, rng, generator, device

    def make(self, lengths: DrawnLengths, interleaved: bool) -> Any:
        import torch

        descriptor, operands = self.descriptor, self.descriptor.operands()
        values: dict[str, Tensor] = {name: self._tensor(spec) for name, spec in operands.items() if None not in _sizes(spec)}
        q_lens = lengths.q if lengths.q is not None else self._q_lengths()
        if "q_indptr" in operands:
            values["q_indptr"] = self._indptr(q_lens)
        if "append_indptr" in operands:
            values["append_indptr"] = self._indptr(q_lens)
        if hasattr(descriptor, "paged_kv"):
            kv_lens = lengths.kv if lengths.kv is not None else self._kv_lengths(q_lens)
            values |= self._paged(descriptor.paged_kv, list(kv_lens), interleaved)
            if "cos_sin_cache" in operands:
                values["cos_sin_cache"] = self._angles(max([1, *kv_lens]))
        elif "kv_indptr" in operands:
            kv_lens = lengths.kv if lengths.kv is not None else self._ragged_lengths()
            values["kv_indptr"] = self._indptr(kv_lens)
        for name in ("row_params", "key_params"):
            if name in operands:  # few values, so that some are equal
                values[name] = torch.randint(0, 3, values[name].shape, generator=self.generator, device=self.device).int()
        if "bits_indptr" in operands:
            values["bits_indptr"] = self._indptr(split_total(self.rng, descriptor.num_bits, descriptor.batch_size))
        if "packed_mask" in operands:
            values |= self._packed_mask(list(zip(q_lens, kv_lens, strict=True)))
        for name in ("k_scale", "v_scale", "q_scale"):
            if name in operands:
                values[name] = values[name].clamp(-1.5, 1.5).exp()
        if getattr(descriptor, "quantises", False):  # some numbers are beyond the largest that an fp8 cache holds
            for name in ("k_new", "v_new"):
                beyond = torch.rand(values[name].shape, generator=self.generator, device=self.device) < 0.01
                values[name] = torch.where(beyond, values[name] * 2000, values[name])
        if "sinks" in operands:
            none = values["sinks"] < -1.5
            values["sinks"] = (2 + 2 * values["sinks"]).masked_fill(none, float("-inf"))
        for pair in getattr(descriptor, "state_names", ()):
            values |= self._states(values, *pair)
        valid = lengths.valid if isinstance(lengths, DrawnLengths) else None  # those of a workload do not count rows
        self._count_valid(operands, values, valid)
        return descriptor.args_type(**values)

    def _tensor(self, spec: TensorSpec) -> Tensor:
        import torch

        shape, dtype = _sizes(spec), torch_dtype(spec.dtype)
        if spec.role == "out":
            return fill(torch.empty(shape, dtype=dtype, device=self.device), math.nan)
        if spec.values is not None:
            first, stop = spec.values
            return torch.randint(first, max(stop, first + 1), shape, generator=self.generator, device=self.device).to(dtype)
        if spec.role == "index":
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return drawn(shape, dtype, self.generator)

    def _count_valid(self, operands: dict[str, TensorSpec], values: dict[str, Tensor], valid: int | None) -> None:
        """Most rows are valid; those that are not hold NaN, and indices that are none."""
        for counted in {spec.valid_rows for spec in operands.values() if spec.valid_rows}:
            _, past = operands[counted].values or (0, 1)
            rows = past - 1
            drawn = self.rng.choice((self.rng.randint(rows // 2, max(rows // 2, rows - 1)), self.rng.randint(0, rows)))
            values[counted].fill_(drawn if valid is None else min(valid, rows))
        for name, spec in operands.items():
            if not spec.valid_rows:
                continue
            rest = values[name][int(values[spec.valid_rows][0]) :]
            if rest.dtype.is_floating_point:
                rest.fill_(float("nan"))
            elif spec.values is not None:
                rest.fill_(min(spec.values[1] + 2**20, torch_max(rest)))

    def _indptr(self, lengths: Sequence[int]) -> Tensor:
        import torch

        return torch.tensor([0, *lengths], device=self.device).cumsum(0).to(torch.int32)

    def _q_lengths(self) -> list[int]:
        rows = getattr(self.descriptor, "total_num_rows", None)
        batch = getattr(self.descriptor, "batch_size", 0)
        return [1] * batch if rows is None else split_total(self.rng, rows, batch)

    def _kv_lengths(self, q_lens: Sequence[int]) -> list[int]:
        descriptor = self.descriptor
        cache = descriptor.paged_kv
        pages = cache.num_total_pages if descriptor.max_kv_indices is None else descriptor.max_kv_indices
        append = descriptor.op == "paged_kv_append"
        least = q_lens if append else [0] * descriptor.batch_size
        drawn = draw_kv_lengths(self.rng, descriptor.batch_size, min(pages, cache.num_total_pages), cache.page_size, least)
        return self._within(drawn)

    def _ragged_lengths(self) -> list[int]:
        return self._within(split_total(self.rng, self.descriptor.total_kv_rows, self.descriptor.batch_size))

    def _within(self, kv_lens: list[int]) -> list[int]:
        most = getattr(self.descriptor, "max_kv_len", None)
        return kv_lens if most is None else [min(length, most) for length in kv_lens]

    def _paged(self, cache: PagePool, kv_lens: list[int], interleaved: bool) -> dict[str, Tensor]:
        import torch

        counts = [-(-n // cache.page_size) for n in kv_lens]
        pages = self._pages(max(cache.num_total_pages, 1), counts).to(torch.int32).to(self.device)
        pools = self._pools(interleaved)
        self._fill(cache, pools.values(), pages, counts, kv_lens)
        return pools | self._table(pages, counts, kv_lens, cache.page_size, 5 if interleaved else 0)

    def _pages(self, pool: int, counts: Sequence[int]) -> Tensor:
        """Pages of all requests: each its own, or, of more than the pool has, each request some in an order of its own."""
        import torch

        def order() -> Tensor:
            return torch.randperm(pool, generator=torch.Generator().manual_seed(self.rng.randrange(2**31)))

        if sum(counts) <= pool:
            return order()[: sum(counts)]
        own = [torch.cat([order() for _ in range(-(-count // pool))])[:count] for count in counts if count]
        return torch.cat(own)

    def _pools(self, interleaved: bool) -> dict[str, Tensor]:
        """The two pools full of NaN, apart or as columns of one tensor."""
        import torch

        specs = {n: spec for n, spec in self.descriptor.operands().items() if n in ("k_data", "v_data", "ckv", "kpe")}
        shapes, dtype = [_sizes(spec) for spec in specs.values()], torch_dtype(self.descriptor.paged_kv.dtype)
        if interleaved and shapes[0][-1] * dtype.itemsize % 16 == 0:  # else the second would start unaligned
            first, second = (shape[-1] for shape in shapes)
            both = torch.full((*shapes[0][:-1], first + second), float("nan"), device=self.device).to(dtype)
            return dict(zip(specs, (both[..., :first], both[..., first:]), strict=True))
        return {n: torch.full(s, float("nan"), device=self.device).to(dtype) for n, s in zip(specs, shapes, strict=True)}

    def _fill(self, cache: Any, pools: Iterable[Tensor], pages: Tensor, counts: list[int], kv_lens: list[int]) -> None:
        """Random values in the slots that count; the rest stays NaN."""
        import torch

        used = torch.zeros(int(pages.numel()), cache.page_size, dtype=torch.bool, device=self.device)
        first = 0
        for count, length in zip(counts, kv_lens, strict=True):
            used[first : first + count].view(-1)[:length] = True
            first += count
        page, slot = used.nonzero(as_tuple=True)
        for pool in pools:
            by_token = pool.movedim(cache.token_axis, 1)
            shape = (page.numel(), *by_token.shape[2:])
            fresh = torch.randn(shape, generator=self.generator, device=self.device).to(pool.dtype)
            bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[pool.element_size()]
            by_token.view(bits)[pages.long()[page], slot] = fresh.view(bits)

    def _table(self, pages: Tensor, counts: list[int], kv_lens: list[int], page_size: int, beside: int) -> dict[str, Tensor]:
        """beside: columns of a block table that are no part of it."""
        import torch

        if self.descriptor.page_table == "block":
            width = max([1, *counts]) + self.rng.randint(0, 2)
            wide = torch.full((len(counts), width + beside), 2**30, dtype=torch.int32, device=self.device)
            table = wide[:, :width].fill_(-1)
            first = 0
            for request, count in enumerate(counts):
                table[request, :count] = pages[first : first + count]
                first += count
            return {"block_table": table, "kv_lens": torch.tensor(kv_lens, dtype=torch.int32, device=self.device)}
        last = [(n - 1) % page_size + 1 if n else self.rng.randint(0, page_size) for n in kv_lens]
        tail = torch.full((self.rng.randint(0, 3),), 2**30, dtype=torch.int32, device=self.device)  # never read
        return {
            "kv_indptr": self._indptr(counts),
            "kv_indices": torch.cat([pages, tail]),
            "last_page_len": torch.tensor(last, dtype=torch.int32, device=self.device),
        }

    def _packed_mask(self, shapes: Sequence[tuple[int, int]]) -> dict[str, Tensor]:
        """About two of three bits set, some rows without any; random bytes between requests and after the last."""
        import torch

        own, starts = [], [0]
        for q_len, kv_len in shapes:
            shown = torch.rand(q_len, kv_len, generator=self.generator, device=self.device) < 0.66
            shown[torch.rand(q_len, generator=self.generator, device=self.device) < 0.05] = False
            stray = 7 + 8 * self.rng.randint(0, 3)
            bits = torch.nn.functional.pad(shown.flatten(), (0, stray), value=True)
            bits = bits[: bits.numel() // 8 * 8].view(-1, 8).long()
            own.append((bits << torch.arange(8, device=self.device)).sum(-1).to(torch.uint8))
            starts.append(starts[-1] + own[-1].numel())
        packed = torch.cat(own) if own else torch.zeros(0, dtype=torch.uint8, device=self.device)
        return {"packed_mask": packed, "mask_indptr": torch.tensor(starts, dtype=torch.int32, device=self.device)}

    def _angles(self, positions: int) -> Tensor:
        """Cosines and sines as models have them; rows past the last position are NaN."""
        import torch

        half = self.descriptor.rotated // 2
        speed = 10000.0 ** (-torch.arange(half, device=self.device) / half)
        angle = torch.arange(positions, device=self.device)[:, None] * speed
        past = torch.full((self.rng.randint(0, 3), 2 * half), float("nan"), device=self.device)
        return torch.cat([torch.cat([angle.cos(), angle.sin()], -1), past]).to(torch_dtype(self.descriptor.rope_dtype))

    def _states(self, values: dict[str, Tensor], o: str, lse: str) -> dict[str, Tensor]:
        """Log-sum-exps of ordinary size, some states empty, their o NaN."""
        import torch

        shape = tuple(values[lse].shape)
        drawn = torch.randn(shape, generator=self.generator, device=self.device) * 3
        empty = torch.rand(shape, generator=self.generator, device=self.device) < 0.2
        states_o = values[o].float().masked_fill(empty[..., None], float("nan")).to(values[o].dtype)
        return {lse: drawn.masked_fill(empty, float("-inf")), o: states_o}


def torch_max(tensor: Tensor) -> int:
    """The largest integer of its dtype."""
    import torch

    return int(torch.iinfo(tensor.dtype).max)


def _sizes(spec: TensorSpec) -> tuple[Any, ...]:
    return tuple(dim.size for dim in spec.shape)
