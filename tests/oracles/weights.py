"""pack_weights and unpack_weights, from docs/ops/weights.md and, for the order of codes in a word, from the checkpoints'
formats. Every tensor is exact.

Each layout is a function from the codes [n, k] to the tensor of the checkpoint and back: `index` gives the word and the bit
where the code of a column and an element is stored.
"""

import torch

AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column of each nibble of a word


def spots(problem):
    """(shape, word index [n, k] in the flat tensor, first bit [n, k], bits of a word) of the stored codes."""
    n, k, source = problem.n, problem.k, problem.source
    col, row = torch.meshgrid(torch.arange(n), torch.arange(k), indexing="ij")
    if source in ("gptq", "gptq_v2"):
        return (k // 8, n), row // 8 * n + col, row % 8 * 4, 32
    if source == "awq":
        nibble = torch.tensor([AWQ.index(c) for c in range(8)])
        return (k, n // 8), row * (n // 8) + col // 8, nibble[col % 8] * 4, 32
    if source == "compressed_tensors":
        return (n, k // 8), col * (k // 8) + row // 8, row % 8 * 4, 32
    if source == "hqq":
        # Groups of all columns in a row-major order of (column, group); the first half is in the upper bits.
        group = problem.weight_format.group
        number = col * (k // group) + row // group
        half = n * (k // group) // 2
        return (half, group), number % half * group + row % group, torch.where(number < half, 4, 0), 8
    if source == "mxfp4":
        return (n, k // 32, 16), col * (k // 2) + row // 2, row % 2 * 4, 8
    if source in ("torchao", "nvfp4"):
        return (n, k // 2), col * (k // 2) + row // 2, row % 2 * 4, 8
    assert source == "tinygemm", source
    # Operand B of mma.m16n8k16: lane 4 c + i has column c of 8, and elements 2 i, 2 i + 1, 2 i + 8, 2 i + 9 of 16. A word has
    # the eight codes of two tiles of k; its nibbles interleave them so that nibbles 0, 4, 1, 5, 2, 6, 3, 7 are in order.
    tiles = problem.inner_k_tiles
    block, inside = row // (16 * tiles), row % (16 * tiles)
    tile, element = inside // 16, inside % 16
    lane = col % 8 * 4 + element % 8 // 2
    order = tile % 2 * 4 + element // 8 * 2 + element % 2
    nibble = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])[order]
    shape = (n // 8, k // (16 * tiles), 32, tiles // 2)
    word = ((col // 8 * shape[1] + block) * 32 + lane) * shape[3] + tile // 2
    return shape, word, nibble * 4, 32


def flip(problem):
    """The bits by which a stored code differs from a code of weight_format."""
    own, source = problem.weight_format.dtype, problem.source
    return 8 if (source == "compressed_tensors" and own == "int4") or (source == "tinygemm") else 0


def word_codes(problem, tensor):
    """Codes [n, k] of one stored matrix."""
    _, word, bit, _ = spots(problem)
    return (tensor.reshape(-1).long()[word] >> bit) & 15 ^ flip(problem)


def codes_words(problem, codes, dtype):
    shape, word, bit, _ = spots(problem)
    count = int(torch.tensor(shape).prod())
    flat = torch.zeros(count, dtype=torch.long).scatter_add_(0, word.flatten(), ((codes ^ flip(problem)) << bit).flatten())
    return flat.to(dtype).reshape(shape)


def halves(codes):
    """u8 [n, k / 2]: the code of the lower k in the low bits."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


def nibbles(packed):
    both = torch.stack([packed.long() & 15, packed.long() >> 4], -1)
    return both.flatten(-2)


def scales(problem, tensor, back):
    """Scales [n, groups] of the stored ones, or with `back` the stored ones of [n, groups]; a float zero point likewise."""
    if problem.source in ("gptq", "gptq_v2", "awq", "torchao", "tinygemm"):
        return tensor.T
    if problem.source == "hqq":
        return tensor.reshape(-1, 1) if back else tensor.reshape(problem.n, -1)
    return tensor


def zero_spots(problem, groups):
    """As spots, for integer zero points [n, groups]."""
    n = problem.n
    col, group = torch.meshgrid(torch.arange(n), torch.arange(groups), indexing="ij")
    if problem.source == "compressed_tensors":
        return (n // 8, groups), col // 8 * groups + group, col % 8 * 4
    nibble = torch.tensor([AWQ.index(c) for c in range(8)]) if problem.source == "awq" else torch.arange(8)
    return (groups, n // 8), group * (n // 8) + col // 8, nibble[col % 8] * 4


def zeros(problem, tensor, groups, back):
    if problem.weight_format.zero != "int":
        return scales(problem, tensor, back)
    shape, word, bit = zero_spots(problem, groups)
    less = 1 if problem.source == "gptq" else 0
    if not back:
        return ((tensor.reshape(-1).long()[word] >> bit) + less & 15).to(torch.uint8)
    flat = torch.zeros(shape[0] * shape[1], dtype=torch.long)
    flat.scatter_add_(0, word.flatten(), ((tensor.long() - less & 15) << bit).flatten())
    return flat.to(torch.int32).reshape(shape)


def _each(problem, tensor, convert):
    return torch.stack([convert(one) for one in tensor]) if problem.batch > 1 else convert(tensor)


def _bytes(convert):
    """Copies bits, for types without arithmetic."""
    return lambda tensor: convert(tensor).contiguous()


def expected(problem, args):
    back = problem.op == "unpack_weights"
    groups = args.weight_scale.shape[-1]
    if back:
        found = {
            "stored_weight": _each(
                problem, args.weight, lambda w: codes_words(problem, nibbles(w)[:, : problem.k], args.stored_weight.dtype)
            )
        }
    else:
        found = {"weight": _each(problem, args.stored_weight, lambda w: halves(word_codes(problem, w)))}
    source, target = ("weight", "stored") if back else ("stored", "weight")
    own = getattr(args, f"{source}_scale")
    found[f"{target}_scale"] = _each(problem, own, _bytes(lambda s: scales(problem, s, back)))
    if problem.weight_format.zero != "none":
        own = getattr(args, f"{source}_zero")
        found[f"{target}_zero"] = _each(problem, own, _bytes(lambda z: zeros(problem, z, groups, back)))
    if problem.weight_format.num_groups is not None:
        found[f"{target}_groups"] = getattr(args, f"{source}_groups").clone()
    return found
