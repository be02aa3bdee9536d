"""Faults in the clamping of wrong index tensors, and in errors about unused rows and pages."""

from tests.mutation.mutant import cpu

INDICES = "tests/emulator/test_emulated_indices.py"
VALIDATION = "tests/compat/test_flashinfer_validation.py"
RULES = "kernels/validation/index_rules.h"

INDEX_FAULTS = (
    cpu(
        "append: a row whose page is not in the pool goes to it",
        "kernels/kv_cache/place.cuh",
        "place.page = pages.entry_of(place.position);",
        "place.page = pages.checked(pages.entry_of(place.position));",
        f"{INDICES} -k appended",
    ),
    cpu(
        "device rules: a page that stores nothing is told",
        RULES,
        "return t.appends && page == kNowhere;",
        "return t.appends && page == kNowhere && page > 0;",
        "tests/validation/test_device.py -k stores_nothing",
    ),
    cpu(
        "reference: a row that is stored nowhere goes to the page of another",
        "opfacade/backends/reference/kv_cache.py",
        "kept = page != NOWHERE",
        "kept, page = page == page, page.clamp(min=0)",
        f"{VALIDATION} -k at_any_level",
    ),
)
