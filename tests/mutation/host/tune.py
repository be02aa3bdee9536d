"""Faults in measurements: what is measured, the decision, the storage, and the problems to which it applies."""

from tests.mutation.mutant import host

DECISION, STORE = "select/decision.py", "select/measurement_store.py"
STAMP, PINS, TUNE, RACE = "select/hardware_stamp.py", "select/pins.py", "tune/tune.py", "tune/measure.py"
DECIDED, STORED = "tests/select/test_decision.py", "tests/select/test_measurement_store.py"
TUNED, TIMED = "tests/tune/test_tune.py", "tests/tune/test_measure.py"

FAULTS = (
    host("decide: of equals the fastest wins", DECISION, "winner = equals[0] if", "winner = best if", DECIDED),
    host("decide: the mean is the measure", DECISION, "middle = median(ordered)", "middle = sum(ordered) / n", DECIDED),
    host(
        "store: any GPU of an architecture is the same",
        STAMP,
        'return measured_on == wanted or (wanted.endswith("/") and measured_on.startswith(wanted))',
        'return measured_on.split("/")[:2] == wanted.split("/")[:2]',
        TUNED,
    ),
    host(
        "store: kernels are not in the stamp",
        STAMP,
        'digest.update(path.relative_to(root).as_posix().encode() + b"\\0" + path.read_bytes())',
        'digest.update(b"")',
        TUNED,
    ),
    host(
        "store: rows of other hardware are overwritten",
        STORE,
        "PRIMARY KEY (key, hardware, toolchain, require)",
        "PRIMARY KEY (key)",
        STORED,
    ),
    host(
        "store: rows of another requirement are overwritten",
        STORE,
        "PRIMARY KEY (key, hardware, toolchain, require)",
        "PRIMARY KEY (key, hardware, toolchain)",
        STORED,
    ),
    host(
        "store: the first mount above counts", STORE, "max(above, key=lambda fields: len(fields[1]))[2]", "above[0][2]", STORED
    ),
    host(
        "store: a shipped table has any order",
        STORE,
        "ordered = sorted(rows, key=lambda r: (r.hardware, r.toolchain, r.require, r.key))",
        "ordered = list(rows)",
        STORED,
    ),
    host(
        "tuned: a SKU that is not eligible is taken",
        PINS,
        "measured = [known[sku] for sku in eligible if sku in known]",
        "measured = list(known.values())",
        f"{TUNED} tests/select/test_explanation.py",
    ),
    host(
        "tune: a candidate of NaN is timed",
        TUNE,
        "if not report.worst <= 1:",
        "if report.worst > 1:",
        "tests/tune/test_proven.py",
    ),
    host(
        "race: the first call of each is a sample",
        RACE,
        "        timer(calls[name])  # the first",
        "        samples[name].append(timer(calls[name]))  # the first",
        TIMED,
    ),
    host("race: calls come in a fixed order", RACE, "order.sample(running, len(running))", "list(running)", TIMED),
    host("race: nothing is dropped", RACE, "<= how.hopeless * best]", "<= 1e9 * best]", TIMED),
)
