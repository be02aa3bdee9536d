// Shared memory of a fold whose rows pass through it, for the kernel and its binding.
#pragma once

namespace opfacade {

// kFlatPiece: bytes of one copy. kFlatBeside: extra bytes of shared memory per operand, because its elements begin up to 15
// bytes after an aligned address, and the last vector is read whole, with the 16 bytes after it.
constexpr int kFlatPiece = 16, kFlatBeside = 112;

// Bytes for `rows` rows of an operand whose elements have `size` bytes.
template <class N>
constexpr N flat_bytes(N rows, N elements, N size) {
  return (rows * elements * size + kFlatBeside) / kFlatPiece * kFlatPiece;
}

}  // namespace opfacade
