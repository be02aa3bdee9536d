"""Faults in the basis of a diagnosis: logs, statistics, dumps and the pages that a call names."""

from tests.mutation.mutant import host

PAGES, STATISTICS, LOG = "observe/call_pages.py", "observe/call_statistics.py", "observe/apilog.py"
DUMPS, FILES = "observe/dumps.py", "observe/dump_files.py"
NAMED, MEASURED, LOGGED = (
    "tests/observe/test_call_pages.py",
    "tests/observe/test_call_statistics.py",
    "tests/observe/test_apilog.py",
)
DUMPED, STORED = "tests/observe/test_dumps.py", "tests/observe/test_dump_files.py"

FAULTS = (
    host(
        "pages: a table that contradicts itself names nothing",
        PAGES,
        "return torch.full_like(table, page_tokens)",
        "return torch.zeros_like(table)",
        NAMED,
    ),
    host(
        "pages: the first chunk alone is gathered",
        PAGES,
        "    for first in range(0, found.ids.numel(), step):\n        ids = found",
        "    for first in range(0, min(1, found.ids.numel()), step):\n        ids = found",
        NAMED,
    ),
    host("statistics: NaN is not counted", STATISTICS, "wrong = values.isnan()", "wrong = values.isnan() & False", MEASURED),
    host(
        "statistics: the rest of a tensor is left out",
        STATISTICS,
        "for first in range(0, tensor.shape[axis], step):",
        "for first in range(0, tensor.shape[axis] - step + 1, step):",
        MEASURED,
    ),
    host(
        "log: a failure breaks a run",
        LOG,
        "except (*dumps.FAILURES, ValueError) as error:",
        "except KeyError as error:",
        LOGGED,
    ),
    host(
        "dump: a table keeps the ids of the whole pool",
        DUMPS,
        "kept[name] = call_pages.renumbered(tensor, pages)",
        "kept[name] = tensor.detach().cpu().clone()",
        DUMPED,
    ),
    host("dump files: a megabyte is larger", FILES, "self.megabytes * 10**6:", "self.megabytes * 2**20:", f"{STORED} {DUMPED}"),
)
