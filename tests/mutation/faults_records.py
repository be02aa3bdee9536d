"""Faults in the judges of records: missing parts of a proof, and which of two commits is slower."""

from tests.mutation.mutant import cpu

SHORT, BETWEEN = "bench/shortfalls.py", "bench/between.py"
RECORDS, COMMITS = "tests/testing/test_structural_records.py -k proves_less or no_shortfall", "tests/bench/test_between.py"

RECORD_FAULTS = (
    cpu("reliability: a test with an error did not fail", SHORT, '("failure", "error"))', '("failure",))', RECORDS),
    cpu(
        "reliability: a suite that was cut off ran to its end",
        SHORT,
        'not record.get("ran_to_its_end", False)',
        "False",
        RECORDS,
    ),
    cpu("reliability: a SKU that did not hold is one that did", SHORT, 'row.get("ok") is not True', "False", RECORDS),
    cpu("reliability: a quick proof is a whole one", SHORT, '.get("quick", True)', '.get("slow", False)', RECORDS),
    cpu("reliability: a tool with errors is clean", SHORT, 'if said != "clean"', "if not said", RECORDS),
    cpu("reliability: a missed fault needs no reason", SHORT, 'not row.get("blind")', "not row", RECORDS),
    cpu(
        "reliability: a fault too few is not seen",
        SHORT,
        "sorted(set(wanted) - set(there))",
        "sorted(set(there) - set(wanted))",
        RECORDS,
    ),
    cpu("reliability: a record needs no commit", SHORT, '{}).get("commit")', "{}) or True", RECORDS),
    cpu("between: old over new", BETWEEN, "median(new) / median(old)", "median(old) / median(new)", COMMITS),
    cpu("between: records of two commits are one side", BETWEEN, "len(commits(old)) != 1 or ", "", COMMITS),
)
