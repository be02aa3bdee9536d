"""Layouts of checkpoints, built from codes by plain loops as each library documents them."""

import torch

AWQ = [0, 2, 4, 6, 1, 3, 5, 7]  # the column of each code in a 32-bit word
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]


def i32(words):
    """32-bit words as signed numbers."""
    raw = torch.tensor(words, dtype=torch.int64)
    return (raw - 2**32 * (raw >= 2**31)).to(torch.int32)


def word(codes):
    return sum(int(code) << (4 * i) for i, code in enumerate(codes))


def gptq(codes):
    """qweight [k / 8, n] from codes [n, k]: a word packs eight consecutive elements along k of one column."""
    n, k = codes.shape
    return i32([[word(codes[c, 8 * r : 8 * r + 8]) for c in range(n)] for r in range(k // 8)])


def gptq_zeros(zeros):
    """qzeros [groups, n / 8] from zeros [n, groups]: a word packs eight columns of one group, each minus 1."""
    n, many = zeros.shape
    return i32(
        [[word([(z - 1) % 16 for z in zeros[8 * c : 8 * c + 8, g].tolist()]) for c in range(n // 8)] for g in range(many)]
    )


def awq(codes):
    """qweight [k, n / 8]: a word packs eight columns of one element along k, the even columns first. qzeros has the same
    layout, with groups instead of elements."""
    n, k = codes.shape
    return i32([[word([codes[8 * c + i, j] for i in AWQ]) for c in range(n // 8)] for j in range(k)])


def compressed(codes):
    """weight_packed [n, k / 8] from codes plus 8."""
    n, k = codes.shape
    return i32([[word(codes[r, 8 * c : 8 * c + 8]) for c in range(k // 8)] for r in range(n)])


def compressed_zeros(zeros):
    """weight_zero_point [n / 8, groups] from zero points."""
    n, many = zeros.shape
    return i32([[word(zeros[8 * r : 8 * r + 8, g]) for g in range(many)] for r in range(n // 8)])


def hqq(codes, group):
    """W_q has one row per group: row r is in the upper half of the byte, row r + half in the lower half."""
    rows = codes.reshape(-1, group)
    half = len(rows) // 2
    return torch.tensor([[16 * int(rows[r, j]) + int(rows[half + r, j]) for j in range(group)] for r in range(half)]).to(
        torch.uint8
    )


def pairs(codes):
    """Codes packed to [n, k / 2], with the first of two elements in the lower bits."""
    n, k = codes.shape
    return torch.tensor([[word(codes[r, 2 * j : 2 * j + 2]) for j in range(k // 2)] for r in range(n)]).to(torch.uint8)


def tinygemm(codes, inner):
    """[n / 8, k / (16 inner), 32, inner / 2]: what lane t of mma.m16n8k16 has of operand B in two tiles of k, v0 to v7 in the
    order v0, v2, v4, v6, v1, v3, v5, v7."""
    n, k = codes.shape
    out = []
    for tile in range(n // 8):
        rows = []
        for outer in range(k // (16 * inner)):
            lanes = []
            for t in range(32):
                words = []
                for two in range(0, inner, 2):
                    v = []
                    for at in (two, two + 1):
                        first = (outer * inner + at) * 16 + t % 4 * 2
                        v += [codes[tile * 8 + t // 4, first + more] for more in (0, 1, 8, 9)]
                    words.append(word([v[i] for i in AWQ]))
                lanes.append(words)
            rows.append(lanes)
        out.append(rows)
    return i32(out)
