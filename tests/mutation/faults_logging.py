"""Planted faults in logs, dumps and messages: effects on a run, and contents of a dump. Tests without a GPU must catch them."""

from tests.mutation.mutant import cpu

LOG, PAGES = "tests/observe/test_apilog.py", "tests/observe/test_call_pages.py"

LOGGING_FAULTS = (
    cpu(
        "log: a line that cannot be written reaches the run",
        "opfacade/observe/apilog.py",
        "except (*dumps.FAILURES, ValueError) as error:",
        "except (RuntimeError, MemoryError, ValueError) as error:",
        LOG,
    ),
    cpu(
        "log: a closed stderr reaches the run",
        "opfacade/observe/apilog.py",
        "except (*dumps.FAILURES, ValueError) as error:",
        "except dumps.FAILURES as error:",
        LOG,
    ),
    cpu(
        "statistics: a pool is copied as a whole",
        "opfacade/observe/call_pages.py",
        "step = max(1, CHUNK // max(1, pool[:1].numel()))",
        "step = 10**9",
        "tests/observe/test_call_statistics.py",
    ),
    cpu(
        "dumps: an id that is no page does not keep page 0",
        "opfacade/observe/call_pages.py",
        "named = tokens > 0",
        "named = (tokens > 0) & (table >= 0) & (table < tables.num_pages)",
        PAGES,
    ),
)
