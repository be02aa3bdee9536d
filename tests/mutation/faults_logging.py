"""Faults in what logs, dumps and tells: what reaches a run, and what a dump keeps. Tests without a GPU must see them."""

from tests.mutation.mutant import cpu

LOG, DUMPS, PAGES = (
    "tests/observe/test_apilog.py",
    "tests/observe/test_dumps.py tests/observe/test_dump_files.py",
    "tests/observe/test_call_pages.py",
)

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
    cpu("log: a FIFO is waited for", "opfacade/base/line_file.py", " | os.O_NONBLOCK", "", "tests/base/test_line_file.py"),
    cpu(
        "log: infinity is no string",
        "opfacade/base/json_text.py",
        "not math.isfinite(value)",
        "False",
        "tests/base/test_json_text.py",
    ),
    cpu(
        "statistics: a pool is copied as a whole",
        "opfacade/observe/call_pages.py",
        "step = max(1, CHUNK // max(1, pool[:1].numel()))",
        "step = 10**9",
        "tests/observe/test_call_statistics.py",
    ),
    cpu(
        "statistics: slots past the length of a request count",
        "opfacade/observe/call_pages.py",
        "device=tensor.device) < tokens[:, None]",
        "device=tensor.device) <= tokens[:, None]",
        "tests/observe/test_call_statistics.py",
    ),
    cpu(
        "dumps: an id that is no page does not keep page 0",
        "opfacade/observe/call_pages.py",
        "named = tokens > 0",
        "named = (tokens > 0) & (table >= 0) & (table < tables.num_pages)",
        PAGES,
    ),
    cpu(
        "dumps: the small pool bounds the call",
        "opfacade/plans/_attention/paging.py",
        ', "max_kv_indices": bound}',
        "}",
        PAGES,
    ),
    cpu(
        "dumps: a table names pages as they were",
        "opfacade/observe/call_pages.py",
        "torch.where(known, new, old)",
        "torch.where(known, old, old)",
        "tests/tools/test_replay.py",
    ),
    cpu(
        "dumps: others may read a file",
        "opfacade/observe/dump_files.py",
        "os.O_NOFOLLOW, 0o600)",
        "os.O_NOFOLLOW, 0o644)",
        DUMPS,
    ),
    cpu("dumps: a failed one takes room", "opfacade/observe/dump_files.py", "        limits.give_back(size)\n", "", DUMPS),
    cpu(
        "dumps: a failed one is left",
        "opfacade/observe/dump_files.py",
        "            shutil.rmtree(place, ignore_errors=True)",
        "            pass",
        DUMPS,
    ),
    cpu(
        "dumps: bytes are not limited",
        "opfacade/observe/dump_files.py",
        "if _used[1] + size > self.megabytes * 10**6:",
        "if False:",
        DUMPS,
    ),
    cpu(
        "cross-check: torch's error of a full disk hides the violation",
        "opfacade/observe/crosscheck.py",
        "except dump_files.FAILURES as error:",
        "except OSError as error:",
        "tests/tools/test_crosscheck.py",
    ),
    cpu(
        "telemetry: a listener that raises reaches the run",
        "opfacade/telemetry/__init__.py",
        "except Exception as error:",
        "except OSError as error:",
        "tests/telemetry/test_telemetry.py",
    ),
    cpu(
        "telemetry: a listener that fails is told for ever",
        "opfacade/telemetry/__init__.py",
        "            _dismiss(self)\n",
        "",
        "tests/telemetry/test_telemetry.py",
    ),
    cpu(
        "warnings: a stderr that is closed is an error",
        "opfacade/base/notices.py",
        "with suppress(OSError, ValueError):",
        "with suppress(OSError):",
        "tests/base/test_notices.py",
    ),
)
