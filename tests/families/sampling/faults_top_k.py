"""Faults planted in the top-k of rows with windows and of long lists."""

from tests.mutation.mutant import Mutant

_K, _TESTS = "kernels/sampling", "tests/families/sampling/test_top_k.py"


def _top_k(name, file, old, new, words):
    return Mutant(f"topk: {name}", f"{_K}/{file}", ((old, new),), tests=f"{_TESTS} -k {words}")


FAULTS = (
    _top_k("a window lacks its first column", "row_adjust.cuh", "token + j < window_first", "token + j <= window_first",
           "window"),
    _top_k("columns before a window count", "row_adjust.cuh", "token + j < window_first ? minus_infinity() : a[j]", "a[j]",
           "window"),
    _top_k("a window begins behind its group", "held.cuh", "row.window_first / 4 * 4", "(row.window_first / 4 + 1) * 4",
           "window"),
    _top_k("a window ends with the row", "row_operands.cuh", "if constexpr (kIsWindowed<C>) return window_end;", "", "window"),
    _top_k("the list of the row lies over that of a CTA", "top_k.cuh", "return {own, own + room, room, room};",
           "return {own, own + room / 2, room, room};", "thousands"),
    _top_k("logits lie over a long list", "top_k.cuh", "lists(room).all + room", "lists(2048).all + 2048", "thousands"),
)  # fmt: skip
