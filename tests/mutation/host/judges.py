"""Faults in what judges a run: determinism, canaries, verify, replay, cross-check, and the problems that are drawn for them."""

from tests.mutation.mutant import host

DETERMINISM, BATCHES, GUARDED = "testing/determinism.py", "testing/batches.py", "testing/guarded.py"
VERIFY, REPLAY, CROSSCHECK = "tools/verify.py", "tools/replay.py", "observe/crosscheck.py"
HARNESS, SUBJECT = "testing/harness.py", "testing/subject.py"
REPEATS = "tests/testing/test_disturbance.py"
INVARIANT = "tests/testing/test_determinism.py -k seen or often"
CANARIES = "tests/testing/test_structural.py -k canaries or its_check"
VERIFIED = "tests/tools/test_verify_judges.py tests/tools/test_verify.py"
REPLAYED = "tests/tools/test_replay.py -k told or crash or command or without_an_operand or other_bits"
CHECKED = "tests/tools/test_crosscheck.py"
DRAWN = "tests/testing/test_drawn.py"

FAULTS = (
    host(
        "demo: a wrong result of qkv_prepare is no failure",
        "demo/report.py",
        "return found if found > 1 else worst(",
        "return worst(",
        "tests/demo/test_demo.py -k of_the_layer",
    ),
    host(
        "demo: attention reads random heads in place of those of the layer",
        "demo/server.py",
        'heads = self._query(len(positions)) | {"q": args.q_out}',
        "heads = self._query(len(positions))",
        "tests/demo/test_demo.py -k takes_its_heads",
    ),
    host(
        "run to run: outputs are not spoiled",
        DETERMINISM,
        "fill(_placed(values[name], rng), rng.choice((0.0, 7.0, math.nan, math.inf)))",
        "_placed(values[name], rng)",
        REPEATS,
    ),
    host("run to run: outputs always hold 0", DETERMINISM, "rng.choice((0.0, 7.0, math.nan, math.inf))", "0.0", REPEATS),
    host("run to run: what is overwritten is not put back", DETERMINISM, "_placed(before[name], rng)", "values[name]", REPEATS),
    host("run to run: each run is the one to compare with", DETERMINISM, "want = want or {", "want = {", REPEATS),
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
    host("run to run: inputs never move", DETERMINISM, "elif rng.random() < 0.1:", "elif False:", REPEATS),
    host(
        "run to run: tensors always lie at the start", DETERMINISM, "offset = step * rng.randrange(64)", "offset = 0", REPEATS
    ),
    host("run to run: a difference counts for nothing", DETERMINISM, "    count = int(different)", "    count = 0", REPEATS),
    host(
        "fingerprint: the first output alone is digested",
        DETERMINISM,
        "            digest.update(_owned(subject, args, name).cpu().numpy().tobytes())\n",
        "            digest.update(_owned(subject, args, name).cpu().numpy().tobytes())\n            break\n",
        REPEATS,
    ),
    host("any batch: one needle seen often is enough", DETERMINISM, "while min(counts)", "while max(counts)", INVARIANT),
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
        "any batch: no batch has an empty request",
        DETERMINISM,
        "rng.randrange(EMPTY, campaign.needles",
        "rng.randrange(0, campaign.needles",
        REPEATS,
    ),
    host("any batch: needles stand in order", DETERMINISM, "    rng.shuffle(order)\n", "", REPEATS),
    host(
        "any batch: neighbours are never drawn",
        DETERMINISM,
        "campaign.needles + NEIGHBOURS) for _",
        "campaign.needles) for _",
        REPEATS,
    ),
    host("any batch: requests never move in memory", DETERMINISM, "if len(orders) % 16 == 15:", "if False:", REPEATS),
    host("any batch: bounds are never larger than the batch", DETERMINISM, "spare=rng.choice((0, 1, 100))", "spare=0", REPEATS),
    host(
        "dense batches: neighbours are ordinary",
        BATCHES,
        "drawn._spoil(name, axis, range(count, count + NEIGHBOURS, 2), math.nan)",
        "pass",
        REPEATS,
    ),
    host(
        "dense batches: outputs hold the result before",
        BATCHES,
        'if spec.role == "out":',
        'if spec.role == "none":',
        REPEATS,
    ),
    host(
        "canaries: the margin behind is not looked at",
        GUARDED,
        "edges = (self.whole[:MARGIN], self.whole[MARGIN + size :])",
        "edges = (self.whole[:MARGIN],)",
        CANARIES,
    ),
    host(
        "canaries: the margin before is not looked at",
        GUARDED,
        "edges = (self.whole[:MARGIN], self.whole[MARGIN + size :])",
        "edges = (self.whole[MARGIN + size :],)",
        REPEATS,
    ),
    host(
        "canaries: inputs may be written", GUARDED, "if not same_bits(bits(getattr(args, name)), old)]", "if False]", CANARIES
    ),
    host(
        "canaries: an output may be left as it is",
        GUARDED,
        "for name, left in untouched.items() if bool(left.any())]",
        "for name, left in untouched.items() if False]",
        CANARIES,
    ),
    host("canaries: both runs have one pattern", GUARDED, "for fill in (0xFF, 0x5A):", "for fill in (0xFF, 0xFF):", REPEATS),
    host("canaries: the workspace has no margins", GUARDED, '({"workspace": workspace} if workspace else {})', "{}", REPEATS),
    host(
        "canaries: rows that are not valid may be written",
        GUARDED,
        "if not bool(rest.all()) else []",
        "if False else []",
        "tests/families/test_toy_operands.py",
    ),
    host(
        "harness: rows that are not valid may change",
        HARNESS,
        "if old is not None and now is not None and not same_bits(now, old):",
        "if False:",
        "tests/families/test_toy_operands.py tests/families/test_harness.py",
    ),
    host(
        "subject: a workspace is larger than promised",
        SUBJECT,
        "torch.full((size + 256 * offset,)",
        "torch.full((size + 4096 + 256 * offset,)",
        REPEATS,
    ),
    host("verify: one seed", VERIFY, "for seed in range(2):", "for seed in range(1):", VERIFIED),
    host("verify: strided tensors are never tried", VERIFY, "interleaved=seed % 2 == 1", "interleaved=False", VERIFIED),
    host(
        "verify: random problems do not count",
        VERIFY,
        "for row in [*rows, *random, *exhaustive])",
        "for row in [*rows, *exhaustive])",
        VERIFIED,
    ),
    host("verify: one random problem", VERIFY, "for seed in range(how.problems):", "for seed in range(1):", VERIFIED),
    host(
        "verify: a random problem that fails is reported and passed",
        VERIFY,
        '**found, "ok": not found["wrong"]}',
        '**found, "ok": True}',
        VERIFIED,
    ),
    host(
        "verify: one claim that holds is enough",
        VERIFY,
        'ok = all(not claim["wrong"] for',
        'ok = any(not claim["wrong"] for',
        VERIFIED,
    ),
    host("verify: a ratio of NaN passes", VERIFY, "if not report.worst <= 1:", "if report.worst > 1:", VERIFIED),
    host("verify: no canaries", VERIFY, "wrong = guarded.run(subject, args)", "wrong = [subject.run(args)][:0]", VERIFIED),
    host(
        "verify: runs that differ are reported and passed",
        VERIFY,
        '{"wrong": [shown.first] if shown.different else []}',
        '{"wrong": []}',
        VERIFIED,
    ),
    host("verify: determinism is not tried", VERIFY, "if promise.deterministic:", "if False:", VERIFIED),
    host(
        "verify: the verdict is not in the seal", VERIFY, 'if name != "sha256"}', 'if name not in ("sha256", "ok")}', VERIFIED
    ),
    host("verify: quick is full", VERIFY, "return QUICK_CPU if quick else FULL_CPU", "return QUICK_CPU", VERIFIED),
    host(
        "verify: a smaller problem may run another SKU", VERIFY, " and small.plan.sku.id == subject.plan.sku.id", "", VERIFIED
    ),
    host(
        "verify: the seed of a sample is always 0",
        VERIFY,
        "rows=rows, seed=seed, before=before",
        "rows=rows, before=before",
        VERIFIED,
    ),
    host(
        "verify: a problem proven twice counts as two SKUs", VERIFY, "            seen.add(subject.plan.sku.id)\n", "", VERIFIED
    ),
    host(
        "replay: the first output alone is compared",
        REPLAY,
        "for name, t in dump.outputs.items()) if dump.outputs",
        "for name, t in list(dump.outputs.items())[:1]) if dump.outputs",
        REPLAYED,
    ),
    host(
        "replay: dumped outputs are not judged",
        REPLAY,
        "dump.inputs | dump.outputs, where), dump)",
        "dump.inputs, where), dump)",
        "tests/tools/test_replay.py -k runs_again_to and paged_decode",
    ),
    host(
        "replay: twice the bound is sound",
        REPLAY,
        "return self.worst <= 1",
        "return not self.worst > 2",
        "tests/tools/test_replay.py -k sound_within",
    ),
    host(
        "replay: an output of another dtype passes",
        REPLAY,
        "(tensor.shape, tensor.dtype) == (before.shape, before.dtype)",
        "tensor.shape == before.shape",
        REPLAYED,
    ),
    host("replay: the output of another call passes", REPLAY, "if missing or unlike or", "if missing or", REPLAYED),
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
    host("cross-check: one row is compared", CROSSCHECK, "ROWS = 64 ", "ROWS = 1 ", CHECKED),
    host(
        "cross-check: every call is due",
        CROSSCHECK,
        "return int(-n * rate // 1) != int(-(n + 1) * rate // 1)",
        "return True",
        CHECKED,
    ),
    host(
        "cross-check: a call during capture is due",
        CROSSCHECK,
        "if not due() or capturing(device_of(args)):",
        "if not due():",
        "tests/tools/test_crosscheck.py -k captured",
    ),
    host(
        "cross-check: inputs are those of after the run",
        CROSSCHECK,
        "        before = copied(args)\n        launch(args, workspace)\n",
        "        launch(args, workspace)\n        before = copied(args)\n",
        CHECKED,
    ),
    host(
        "cross-check: outputs are those of the reference",
        CROSSCHECK,
        "report = judge(plan, evidence, evidence.got)",
        "report = judge(plan, evidence, evidence.reference)",
        CHECKED,
    ),
    host(
        "cross-check replay: any kernel may run",
        "tools/crosscheck.py",
        "Preference(pin=pin)",
        "Preference()",
        "tests/tools/test_crosscheck.py -k that_was_dumped",
    ),
    host("problems: the seed is ignored", HARNESS, 'random.Random(f"{op} {seed}")', "random.Random(op)", DRAWN),
    host(
        "problems: special ones are plain", HARNESS, "return changed(plain, **self.special(rng, plain))", "return plain", DRAWN
    ),
    host(
        "problems: a group of query heads is always 1",
        "testing/families/attention/problems.py",
        "_GROUPS = (1, 2, 3, 4, 5, 6, 7, 8, 11, 13, 16, 20)",
        "_GROUPS = (1,)",
        DRAWN,
    ),
    host(
        "problems: pools are always HND",
        "testing/families/_problems.py",
        '            "dtype": rng.choice(dtypes),\n            "layout": rng.choice(("HND", "NHD")),',
        '            "dtype": rng.choice(dtypes),\n            "layout": rng.choice(("HND",)),',
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
        "problems: merges are never in place",
        "testing/families/cascade.py",
        '256)),\n            dtype=rng.choice(("f16", "bf16", "f32")),\n            in_place=rng.random() < 0.3',
        '256)),\n            dtype=rng.choice(("f16", "bf16", "f32")),\n            in_place=rng.random() < 0',
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
    host(
        "inputs: interleaved pools are apart",
        "testing/families/_request_inputs.py",
        "if draw.interleaved and shape[-1]",
        "if False and shape[-1]",
        DRAWN,
    ),
    host(
        "inputs: no request is empty",
        "testing/families/_request_inputs.py",
        "extra = 0 if rng.random() < 0.1 else",
        "extra = 0 if rng.random() < 0 else",
        DRAWN,
    ),
    host(
        "inputs: last pages are always full",
        "testing/families/_request_inputs.py",
        "lengths.append(rng.choice((top, rng.randint(bottom, top))))",
        "lengths.append(top)",
        DRAWN,
    ),
)
