"""How a decode is cut into pieces and how they are dealt: on the host, and in the emulator."""

from tests.mutation.mutant import DEALT, PIECES, SCHEDULE, K, cpu

PIECE_FAULTS = (
    cpu(
        "device: pieces that are longer than the others overlap those behind them",
        f"{K}/decode/schedule/cut.cuh",
        "return i * base + min(i, more);",
        "return i * base + min(i, more / 2);",
        PIECES,
    ),
    cpu(
        "device: short pieces are dealt first",
        f"{K}/decode/schedule/cut.cuh",
        "return (quarters <= 3 * all) + (quarters <= 2 * all) + (quarters <= all);",
        "return 3 - (quarters <= 3 * all) - (quarters <= 2 * all) - (quarters <= all);",
        PIECES,
    ),
    cpu(
        "device: a tail of equal runs begins one request late",
        f"{K}/decode/schedule/cut.cuh",
        "return {leading + request, before + request * tail, tail};",
        "return {leading + request + 1, before + request * tail, tail};",
        PIECES,
    ),
    cpu(
        "device: pieces that take turns are as long as those that run at once",
        f"{K}/decode/schedule/cut.cuh",
        "return (5 * at_once + 6) / 7;",
        "return at_once;",
        PIECES,
    ),
    cpu(
        "decode: a lane that has a piece is taken for the request itself",
        f"{K}/decode/schedule/pieces.cuh",
        "const int request = place.request + 32 * lane();",
        "const int request = place.request + lane();",
        DEALT,
    ),
    cpu(
        "decode: requests beyond those that a lane holds are not surveyed",
        f"{K}/decode/schedule/pieces.cuh",
        "for (int first = 32 * kHeld; first < p_.batch; first += 32 * kHeld) {",
        "for (int first = 32 * kHeld; false;) {",
        DEALT,
    ),
    cpu(
        "decode: the last request counts once for each lane past it",
        f"{K}/decode/schedule/pieces.cuh",
        "return request < p_.batch ? tiles : 0;",
        "return tiles;",
        DEALT,
    ),
    cpu(
        "decode: pieces of a tail have slots as if all runs had",
        f"{K}/decode/schedule/pieces.cuh",
        "first_split = cut.first_split();",
        "first_split = 0;",
        DEALT,
    ),
    cpu(
        "decode: slots of pieces are two for each block that runs at once",
        "opfacade/backends/cuda/attention/decode.py",
        "least + 3 * resident // 2, 3 * resident, 3 * resident,",
        "least + resident, 2 * resident, 2 * resident,",
        SCHEDULE,
    ),
)
