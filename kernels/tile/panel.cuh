// Panels: rows of 128 bytes in shared memory, as TMA writes and wgmma reads them with a 128-byte swizzle. Eight rows are a group,
// aligned to its size. Wider rows have several panels.
#pragma once
#include "kernels/tile/swizzle.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace opfacade {

constexpr int kPanelGroup = 1024;  // bytes of a group

// Byte offset of a 16-byte chunk in a panel whose groups follow each other.
constexpr uint32_t panel_address(int row, int chunk) {
  return static_cast<uint32_t>(row * 128 + (chunk ^ swizzle_of<8>(row)) * 16);
}
// The same in rows of several panels. to_panel: bytes between panels. to_group: bytes between groups.
constexpr uint32_t panels_address(int row, int chunk, int to_panel, int to_group) {
  return chunk / 8 * to_panel + row / 8 * to_group + panel_address(row % 8, chunk % 8);
}

// Operands of four k-steps. row_steps: the k elements of a row are in the panel; row_descriptor is the first step. group_steps: a
// panel has 64 rows or columns of the product, and a line for each element of k.
__device__ __forceinline__ Descriptor row_descriptor(uint32_t panel, uint32_t to_group = kPanelGroup) {
  return panel_descriptor(panel, to_group, 0);
}
__device__ __forceinline__ Descriptors row_steps(uint32_t panel, uint32_t to_group = kPanelGroup) {
  return Descriptors(row_descriptor(panel, to_group), 32);
}
__device__ __forceinline__ Descriptors group_steps(uint32_t panel, uint32_t to_group, uint32_t to_panel) {
  return Descriptors(panel_descriptor(panel, to_group, to_panel), 2 * to_group);
}

}  // namespace opfacade
