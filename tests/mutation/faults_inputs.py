"""Faults in readers of external names, files and JSON, in checks of tensors, and in predictions of the selected kernel."""

from tests.mutation.mutant import cpu

INPUT_FAULTS = (
    cpu(
        "explain: what is locked and measured is left out",
        "opfacade/select/explanation.py",
        "given = in_force(checked, preference, target) if pins is None else pins",
        'given = pins or (NO_PINS if name == "explain" else in_force(checked, preference, target))',
        "tests/select/test_explanation.py",
    ),
    cpu(
        "json: depth has no bound of its own",
        "opfacade/base/strict_json.py",
        "for _ in range(MAX_DEPTH + 1):",
        "for _ in range(10 * MAX_DEPTH):",
        "tests/base/test_strict_json.py",
    ),
    cpu(
        "cache: what an entry says is read from whatever lies there",
        "opfacade/jit/cache/store.py",
        'regular_files.read(directory / "meta.json", MAX_META_BYTES)',
        '(directory / "meta.json").read_bytes()',
        "tests/jit/cache/test_cache_security.py",
    ),
    cpu(
        "record: a device is put out of its place",
        "opfacade/tools/recorder.py",
        "if os.path.exists(place):",
        "if os.path.isdir(place):",
        "tests/tools/test_recorder.py",
    ),
    cpu(
        "FlashInfer: the second count of a chain is not checked before the first is added",
        "opfacade/compat/flashinfer/_sampling/speculative.py",
        """    for name, given in counts.items():
        _check_count(name, given, draft_token_ids)
""",
        """    _check_count("maybe_output_accepted_token_num", maybe_output_accepted_token_num, draft_token_ids)
""",
        "tests/compat/test_flashinfer_sampling.py",
    ),
)
