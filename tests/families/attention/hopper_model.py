"""A Python model of Hopper's operand layouts: panels, matrix descriptors and fragments, as the kernels use them."""

import torch


def panel_address(row, chunk):
    """The byte offset of a 16-byte chunk in a panel whose rows have 128 bytes, as in kernels/tile/panel.cuh."""
    return row * 128 + ((chunk ^ (row & 7)) * 16)


def swizzle(address):
    """The 128-byte swizzle of the hardware: address bits 4-6 are XORed with bits 7-9."""
    return address ^ ((address >> 3) & 0x70)


def box_in_shared(tensor, x, y, z, w, rows):
    """A box of `rows` rows x 64 elements of a [w, z, y, x] tensor, as TMA stores it; elements outside the tensor are zero."""
    out = torch.zeros(rows * 64, dtype=tensor.dtype)
    for r in range(rows):
        for c in range(64):
            inside = 0 <= y + r < tensor.shape[2] and 0 <= x + c < tensor.shape[3]
            value = tensor[w, z, y + r, x + c] if inside else torch.zeros((), dtype=tensor.dtype)
            out[swizzle(r * 128 + c * 2) // 2] = value
    return out


def into_panels(matrix):
    """A row-major matrix as panel_address stages it in shared memory; offsets are in elements."""
    rows, columns = matrix.shape
    out = torch.zeros(rows * columns, dtype=matrix.dtype)
    for r in range(rows):
        for c in range(columns):
            at = c // 64 * rows * 128 + panel_address(r, c % 64 // 8) + c % 8 * 2
            out[at // 2] = matrix[r, c]
    return out


def descriptor_at(address, across, bytes_on):
    """The fields of panel_descriptor that the hardware reads; the start address is advanced by bytes_on."""
    return {"start": address + bytes_on, "leading": across, "stride": 1024}


def read_rows(shared, descriptor, rows):
    """The rows x 16 operand that a K-major descriptor describes: 16 elements per row, eight rows per `stride` bytes."""
    out = torch.empty(rows, 16, dtype=shared.dtype)
    for r in range(rows):
        for k in range(16):
            at = descriptor["start"] + r // 8 * descriptor["stride"] + r % 8 * 128 + k * 2
            out[r, k] = shared[swizzle(at) // 2]
    return out


def read_transposed(shared, descriptor, columns):
    """The 16 x columns operand that a transposed descriptor describes: one panel per `leading` bytes, eight k-indices per
    `stride` bytes."""
    out = torch.empty(16, columns, dtype=shared.dtype)
    for k in range(16):
        for n in range(columns):
            at = (
                descriptor["start"] + n // 64 * descriptor["leading"] + k // 8 * descriptor["stride"] + k % 8 * 128 + n % 64 * 2
            )
            out[k, n] = shared[swizzle(at) // 2]
    return out


def accumulator_place(thread, index):
    """The (row, column) of accumulator register d[index] of a thread in a warpgroup."""
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    return warp * 16 + g + index % 4 // 2 * 8, index // 4 * 8 + t * 2 + index % 2


def operand_places(thread, register):
    """The two (row, column) pairs that one A register of a 64 x 16 operand packs."""
    warp, g, t = thread // 32, thread % 32 // 4, thread % 4
    row, column = warp * 16 + g + register % 2 * 8, register // 2 * 8 + t * 2
    return (row, column), (row, column + 1)


def transposed_place(row):
    """The column to which kernels/tile/transpose_bytes.cuh moves the byte of this row of the tile."""
    return row & ~15 | (row >> 1 & 3) << 2 | (row >> 3 & 1) << 1 | row & 1


def transposed_row(column):
    """The row of the transposed tile that holds this column."""
    return column & ~15 | (column & 1) << 3 | (column >> 1 & 7)


def transpose_bytes(tile):
    """The transposed 128 x 128 tile as the warps compute it: ldmatrix gives a thread two columns of four row pairs."""
    out = torch.full_like(tile, -1)
    for rows in range(0, 128, 32):
        for columns in range(0, 128, 16):
            for lane in range(32):
                t, column = lane % 4, columns + lane // 4 * 2
                pairs = [tile[rows + 8 * m + 2 * t : rows + 8 * m + 2 * t + 2, column : column + 2] for m in range(4)]
                for c in range(2):
                    for x in range(2):
                        four = torch.cat([pairs[2 * c][:, x], pairs[2 * c + 1][:, x]])
                        out[transposed_row(column + x), rows + 16 * c + 4 * t : rows + 16 * c + 4 * t + 4] = four
    return out
