"""Faults in what keeps wrong index tensors inside, and in errors about unused rows and pages."""

from tests.mutation.mutant import K, cpu

INDICES = "tests/emulator/test_emulated_indices.py"
VALIDATION = "tests/compat/test_flashinfer_validation.py"
UNOWNED = "tests/validation/test_unowned.py"
RULES = "kernels/validation/index_rules.h"

INDEX_FAULTS = (
    cpu(
        "kernels: the end of a range of rows is not clamped",
        "kernels/paged/page_lookup.cuh",
        "return {first, clamped(indptr[request + 1], first, limit)};",
        "return {first, indptr[request + 1]};",
        f"{INDICES} -k clamped",
    ),
    cpu(
        "kernels: kv_lens is not clamped to its row of the table",
        "kernels/paged/page_lookup.cuh",
        "return clamped(table.lens[request], 0, table.limit);",
        "return table.lens[request];",
        f"{INDICES} -k decode-block",
    ),
    cpu(
        "kernels: last_page_len is not clamped to a page",
        "kernels/paged/page_lookup.cuh",
        "clamped(last, 0, table.page_size), 0)",
        "last, 0)",
        f"{INDICES} -k mla",
    ),
    cpu(
        "kernels: a request that validation marked keeps its full pages",
        "kernels/paged/page_lookup.cuh",
        "return length & ~(last >> 31);",
        "return length;",
        f"{INDICES} -k without_pages",
    ),
    cpu(
        "append: a row whose page is not in the pool goes to it",
        "kernels/kv_cache/place.cuh",
        "place.page = pages.entry_of(place.position);",
        "place.page = pages.checked(pages.entry_of(place.position));",
        f"{INDICES} -k appended",
    ),
    cpu(
        "append: a length past the row of the table is taken",
        "kernels/paged/page_lookup.cuh",
        "return length <= table.limit ? length : -1;",
        "return length;",
        f"{INDICES} -k block-copy",
    ),
    cpu(
        "append: a range that ends past the rows is taken",
        "kernels/kv_cache/place.cuh",
        " | (stop > p.total_rows)",
        "",
        f"{INDICES} -k appended",
    ),
    cpu(
        "prefill: a slot before its request's first is worked on",
        f"{K}/prefill/schedule.cuh",
        "tile.rows <= 0 || (kClampsIndices && number < 0)",
        "tile.rows <= 0",
        f"{INDICES} -k before",
    ),
    cpu(
        "full: a page before the window is looked at",
        "opfacade/validation/host.py",
        "unused = used.start // self.tables.page_tokens",
        "unused = 0",
        UNOWNED,
    ),
    cpu(
        "full: rows of q that no request owns must be finite",
        "opfacade/plans/attention.py",
        '{"q": "q_indptr", "k": "kv_indptr", "v": "kv_indptr"}',
        '{"k": "kv_indptr", "v": "kv_indptr"}',
        UNOWNED,
    ),
    cpu(
        "device rules: a page that stores nothing is told",
        RULES,
        "return t.appends && page == kNowhere;",
        "return t.appends && page == kNowhere && page > 0;",
        "tests/validation/test_device.py -k stores_nothing",
    ),
    cpu(
        "device rules: an attention may have a page that stores nothing",
        RULES,
        "return t.appends && page == kNowhere;",
        "return (t.appends || true) && page == kNowhere;",
        "tests/validation/test_device.py -k stores_nothing",
    ),
    cpu(
        "device rules: what is stored nowhere goes to page 0",
        RULES,
        "is_sound(t, page) ? page : 0;",
        "is_page(t, page) ? page : 0;",
        "tests/validation/test_device.py -k stores_nothing",
    ),
    cpu(
        "reference: a row that is stored nowhere goes to the page of another",
        "opfacade/backends/reference/kv_cache.py",
        "kept = page != NOWHERE",
        "kept, page = page == page, page.clamp(min=0)",
        f"{VALIDATION} -k at_any_level",
    ),
    cpu(
        "device rules: the page where the window begins is not looked at",
        RULES,
        "span_of(t, r).count : first / t.page_size;",
        "span_of(t, r).count : first / t.page_size + 1;",
        "tests/validation/test_rules.py",
    ),
)
