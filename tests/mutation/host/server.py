"""Faults of what serves for a long time: sequences that grow, and what calls and processes share."""

from tests.mutation.mutant import host

GROWTH = "tests/integrations/test_growth.py"

FAULTS = (
    host("adapters: the page size of a cache that grows is compiled", "plans/_attention/paging.py",
         "super().power_of_two and not self.any_page_size", "super().power_of_two", f"{GROWTH} -k dense"),
    host("adapters: bounds grow with the sequence", "integrations/growth.py", "most = longest(kv_len)", "most = max(kv_len, 1)",
         f"{GROWTH} -k dense"),
    host("adapters: keys that were gathered begin to be split when they are many", "integrations/growth.py",
         "    if units >= _MANY or", "    if True or units >= _MANY or", f"{GROWTH} -k gathered"),
    host("adapters: a bound lies below the length", "integrations/growth.py", "bound < kv_len", "bound * 2 < kv_len",
         f"{GROWTH} -k never_lies"),
)  # fmt: skip
