"""Faults in the judges of a run: determinism, canaries, verify, replay, cross-check, and their random problems."""

from tests.mutation.mutant import host

DETERMINISM = "testing/determinism.py"
VERIFY, REPLAY, CROSSCHECK = "tools/verify.py", "tools/replay.py", "observe/crosscheck.py"
HARNESS, SUBJECT = "testing/harness.py", "testing/subject.py"
REPEATS = "tests/testing/test_disturbance.py"
INVARIANT = "tests/testing/test_determinism.py -k seen or often"
VERIFIED = "tests/tools/test_verify_judges.py tests/tools/test_verify.py"
REPLAYED = "tests/tools/test_replay.py -k told or crash or command or without_an_operand or other_bits"
DRAWN = "tests/testing/test_drawn.py"

FAULTS = (
    host("run to run: what is overwritten is not put back", DETERMINISM, "_placed(before[name], rng)", "values[name]", REPEATS),
    host(
        "run to run: the first output alone is compared",
        DETERMINISM,
        "for name in written]).any()",
        "for name in written[:1]]).any()",
        REPEATS,
    ),
    host(
        "run to run: the workspace is always the same",
        DETERMINISM,
        "workspace = subject.workspace(rng.randrange(256), rng.randrange(8))",
        "workspace = subject.workspace(0, 0)",
        REPEATS,
    ),
    host(
        "fingerprint: the first output alone is digested",
        DETERMINISM,
        "            digest.update(_owned(subject, args, name).cpu().numpy().tobytes())\n",
        "            digest.update(_owned(subject, args, name).cpu().numpy().tobytes())\n            break\n",
        REPEATS,
    ),
    host(
        "any batch: the first output alone is compared",
        DETERMINISM,
        "for got, table in zip(outs, self.tables, strict=True)]",
        "for got, table in list(zip(outs, self.tables, strict=True))[:1]]",
        INVARIANT,
    ),
    host(
        "any batch: a difference counts for nothing",
        DETERMINISM,
        "nonzero().flatten().tolist() if flags",
        "nonzero().flatten().tolist()[:0] if flags",
        INVARIANT,
    ),
    host(
        "subject: a workspace is larger than promised",
        SUBJECT,
        "return room[begin : begin + size]",
        "return room[begin:]",
        REPEATS,
    ),
    host("verify: a ratio of NaN passes", VERIFY, "if not report.worst <= 1:", "if report.worst > 1:", VERIFIED),
    host("verify: no canaries", VERIFY, "wrong = guarded.run(subject, args)", "wrong = [subject.run(args)][:0]", VERIFIED),
    host(
        "verify: the verdict is not in the seal", VERIFY, 'if name != "sha256"}', 'if name not in ("sha256", "ok")}', VERIFIED
    ),
    host(
        "replay: the first output alone is compared",
        REPLAY,
        "for name, t in dump.outputs.items()) if dump.outputs",
        "for name, t in list(dump.outputs.items())[:1]) if dump.outputs",
        REPLAYED,
    ),
    host(
        "replay: twice the bound is sound",
        REPLAY,
        "return self.worst <= 1",
        "return not self.worst > 2",
        "tests/tools/test_replay.py -k sound_within",
    ),
    host(
        "replay: a state is judged by what the run made of it",
        REPLAY,
        "were = {name: dump.inputs[name] for",
        "were = {name: getattr(here, name) for",
        "tests/tools/test_replay.py -k overwritten",
    ),
    host(
        "cross-check: a ratio of NaN passes",
        CROSSCHECK,
        "if not report.worst <= 1.0:",
        "if report.worst > 1.0:",
        "tests/tools/test_crosscheck.py -k ratio",
    ),
    host("problems: the seed is ignored", HARNESS, 'random.Random(f"{op} {seed}")', "random.Random(op)", DRAWN),
    host(
        "problems: a group of query heads is always 1",
        "testing/families/attention/problems.py",
        "_GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20)",
        "_GROUPS = (1,)",
        DRAWN,
    ),
    host(
        "problems: no window",
        "testing/families/_problems.py",
        '"window_left": rng.choice((-1, -1, 0, 17, rng.randint(1, tokens))),',
        '"window_left": rng.choice((-1, -1, -1, -1, rng.randint(-1, -1))),',
        DRAWN,
    ),
    host(
        "problems: splits are always automatic",
        "testing/families/_problems.py",
        '("auto", "auto", "off", rng.choice((32, 100, 256, 1000)))',
        '("auto", "auto", "auto", "auto")',
        DRAWN,
    ),
    host(
        "inputs: pages lie in order",
        "testing/families/_request_inputs.py",
        "return torch.randperm(pool, generator=torch.Generator().manual_seed(draw.rng.randrange(2**31)))",
        "return torch.arange(pool)",
        DRAWN,
    ),
    host(
        "inputs: slots that do not count hold 0",
        "testing/families/_request_inputs.py",
        "return {name: draw.nan(shape, dtype)",
        "return {name: 0 * draw.nan(shape, dtype).nan_to_num(0.0)",
        DRAWN,
    ),
    host(
        "inputs: outputs begin at 0",
        "testing/inputs.py",
        "fill(torch.empty(shape, dtype=dtype, device=draw.device), math.nan)",
        "torch.zeros(shape, dtype=dtype, device=draw.device)",
        DRAWN,
    ),
)
