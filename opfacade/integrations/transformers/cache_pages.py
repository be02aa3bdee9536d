"""The pages of a cache of continuous batching. All code that depends on the release, 5.17 or 5.18, is in this file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from opfacade.integrations.transformers.parts import PagedCache


@dataclass(frozen=True, slots=True)
class LayerPages:
    """One layer's K and V, [pages, page_size, kv_heads, dim] each, and the group of layers that shares their page table.

    slots_a_page: token slots from one page of this layer to its next one; an index tensor counts in slots.
    """

    group: int
    k: Tensor
    v: Tensor
    slots_a_page: int

    @property
    def page_size(self) -> int:
        return self.k.shape[1]


def slides(cache: PagedCache, layer: int) -> bool:
    """Whether a layer keeps its window in a ring of slots, which are not pages in order."""
    if hasattr(cache, "layer_to_allocator"):
        return not cache.layer_to_allocator[layer].supports_block_table
    return bool(cache.sliding_windows[layer] != 1)


def layer_pages(cache: PagedCache, layer: int) -> LayerPages:
    """Block table of a layer without a sliding window."""
    if hasattr(cache, "layer_to_allocator"):
        group, k, v = cache.get_cache_for_block_table(layer)
        slots = cache.layer_to_allocator[layer].block_physical_stride
        # The pages of all layers, K and V, are one buffer, and both views have all of it. Every n-th page is of this layer:
        # views of those pages do not overlap, as operands that are written must not.
        every = slots // k.shape[1]
        return LayerPages(group, k[::every], v[::every], slots)
    group, index = cache.layer_index_to_group_indices[layer]
    shape = (-1, cache.block_size, cache.num_key_value_heads, cache.head_dim)
    return LayerPages(group, cache.key_cache[index].view(shape), cache.value_cache[index].view(shape), cache.block_size)
