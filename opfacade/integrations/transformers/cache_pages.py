"""The pages of transformers' cache for continuous batching. All code that depends on the release, 5.17 or 5.18, is in this
file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import PagedCache


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's K and V, [pages, page_size, kv_heads, dim] each, and the group of layers that shares their page table.

    slots_a_page: the distance between two pages of this layer, in token slots, in which index tensors count.
    """

    group: int
    k: Tensor
    v: Tensor
    slots_a_page: int

    @property
    def page_size(self) -> int:
        return self.k.shape[1]


def slides(cache: PagedCache, layer: int) -> bool:
    """Whether a layer keeps its window in a ring buffer of slots, which cannot be read as pages in order."""
    if hasattr(cache, "layer_to_allocator"):
        return not cache.layer_to_allocator[layer].supports_block_table
    return bool(cache.sliding_windows[layer] != 1)


def layer_pages(cache: PagedCache, layer: int) -> LayerPages:
    """The block table of a layer without a sliding window."""
    if hasattr(cache, "layer_to_allocator"):
        group, k, v = cache.get_cache_for_block_table(layer)
        slots = cache.layer_to_allocator[layer].block_physical_stride
        # K and V of all layers share one buffer, and both views cover all of it. Every n-th page belongs to this layer, so
        # views of only these pages do not overlap; written operands must not overlap.
        every = slots // k.shape[1]
        return LayerPages(group, k[::every], v[::every], slots)
    group, index = cache.layer_index_to_group_indices[layer]
    shape = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    return LayerPages(group, cache.key_cache[index].view(shape), cache.value_cache[index].view(shape), cache.block_size)
