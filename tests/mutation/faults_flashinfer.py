"""Faults in what FlashInfer's calls refuse before they write: masks, rows of an append, sizes of plan(), buffers of a graph."""

from tests.mutation.mutant import cpu

A, EDGES = "opfacade/compat/flashinfer", "tests/compat/test_flashinfer_edges.py"
MORE = "tests/compat/test_flashinfer_more.py"
VALIDATION = "tests/compat/test_flashinfer_validation.py"

FLASHINFER_FAULTS = (
    cpu(
        "FlashInfer: full takes rows for owners of pages",
        f"{A}/astray.py",
        "with judged_by(self._judge):",
        "if True:",
        f"{VALIDATION} -k one_page",
    ),
    cpu(
        "FlashInfer: full does not look whose a page is",
        f"{A}/astray.py",
        "        refuse_shared(self.op, self.where, descriptor.paged_kv.page_size)\n",
        "",
        f"{VALIDATION} -k refuses",
    ),
    cpu(
        "FlashInfer: two rows may go to one position",
        f"{A}/owners.py",
        "if first != row:",
        "if False:",
        f"{VALIDATION} -k one_position",
    ),
    cpu(
        "FlashInfer: pages before the one that a row goes to are written",
        f"{A}/owners.py",
        "position // page_size) for",
        "0) for",
        f"{VALIDATION} -k read_alone",
    ),
    cpu(
        "FlashInfer: a request past the new rows is told as a page",
        f"{A}/astray.py",
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
        f"{A}/masks.py",
        "if custom.dtype != torch.bool and custom.dtype not in _WHOLE:",
        "if custom.is_complex():",
        EDGES,
    ),
    cpu(
        "FlashInfer: a transposed mask is taken",
        f"{A}/single.py",
        "if tuple(custom.shape) not in (shape, (count,)):",
        "if custom.numel() != count:",
        EDGES,
    ),
    cpu(
        "FlashInfer: a mask is cut to the buffer of a graph",
        f"{A}/masks.py",
        "if count < mask.packed.shape[0] and count < int(mask.indptr[-1]):",
        "if False:",
        EDGES,
    ),
    cpu(
        "FlashInfer: a new row goes to a page of the next request",
        f"{A}/page.py",
        "& (at < indptr[1:].index_select(0, own))",
        "",
        EDGES,
    ),
    cpu(
        "FlashInfer: a row of nobody is one without a page",
        f"{A}/page.py",
        "    page = torch.where(stored, page, NOWHERE)\n",
        "",
        f"{VALIDATION} -k nobody",
    ),
    cpu(
        "FlashInfer: latent pages of another size than plan() has",
        f"{A}/latent.py",
        "if (page_size, width) != (told.page_size, latent):",
        "if width != latent:",
        EDGES,
    ),
    cpu(
        "FlashInfer: a merge writes v before it refuses s",
        f"{A}/merging.py",
        '    _require_own_memory(op, "s", s)\n',
        "",
        EDGES,
    ),
    cpu(
        "FlashInfer: a graph's buffer is filled before plan() refuses",
        f"{A}/wrapper.py",
        "        return buffer\n\n    def _values",
        "        buffer[: tensor.shape[0]].copy_(tensor)\n        return buffer\n\n    def _values",
        EDGES,
    ),
    cpu(
        "FlashInfer: a sampler takes indices of no row",
        f"{A}/sampling.py",
        "if not 0 <= found < x.shape[0]:",
        "if False:",
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
        "FlashInfer: rows of nobody at the end are written",
        f"{A}/page.py",
        "_checked(op, where).request >= 0",
        "_checked(op, where).request >= -1",
        MORE,
    ),
)
