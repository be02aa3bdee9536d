"""Faults in refusals of FlashInfer's calls before they write: masks, rows of an append, sizes of plan(), buffers of a graph."""

from tests.mutation.mutant import cpu

A, EDGES = "opfacade/compat/flashinfer", "tests/compat/test_flashinfer_edges.py"
MORE = "tests/compat/test_flashinfer_more.py"
VALIDATION = "tests/compat/test_flashinfer_validation.py"

FLASHINFER_FAULTS = (
    cpu(
        "FlashInfer: a request past the new rows is told as a page",
        f"{A}/_append/errors.py",
        """    if found.argument == _ROWS:
        descriptor""",
        """    if found.argument == "":
        descriptor""",
        f"{VALIDATION} -k told_by_its_argument",
    ),
    cpu(
        "FlashInfer: a top_p of integers is refused",
        "opfacade/compat/dtypes.py",
        "if x.dtype == torch.bool or x.is_complex():",
        "if not x.is_floating_point():",
        "tests/compat/test_flashinfer_sampling.py",
    ),
    cpu(
        "FlashInfer: an additive mask is taken for truths",
        f"{A}/_attention/masks.py",
        "if custom.dtype != torch.bool and custom.dtype not in _WHOLE:",
        "if custom.is_complex():",
        EDGES,
    ),
    cpu(
        "FlashInfer: a transposed mask is taken",
        f"{A}/_attention/single.py",
        "if tuple(custom.shape) not in (shape, (count,)):",
        "if custom.numel() != count:",
        EDGES,
    ),
    cpu(
        "FlashInfer: a graph's buffer is filled before plan() refuses",
        f"{A}/_attention/wrapper.py",
        "        return buffer\n\n    def _values",
        "        buffer[: tensor.shape[0]].copy_(tensor)\n        return buffer\n\n    def _values",
        EDGES,
    ),
    cpu(
        "FlashInfer: a new row goes to the page of the next token",
        f"{A}/page.py",
        "+ position // page_size",
        "+ (position + 1) // page_size",
        MORE,
    ),
    cpu(
        "FlashInfer: a window of scores begins at 0",
        f"{A}/_sampling/topk_transforms.py",
        "(starts, starts + window.lengths)",
        "(torch.zeros_like(starts), window.lengths)",
        "tests/compat/test_flashinfer_topk.py -k slots",
    ),
)
