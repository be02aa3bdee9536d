"""The demo: its allocator, its schedule, its lengths, and that it notices a wrong result."""

import json
import re
from collections import Counter
from dataclasses import replace
from io import StringIO

import pytest
import torch
from click.testing import CliRunner

from examples.demo import ahead, plain_layer
from examples.demo.__main__ import main
from examples.demo.layer import Layer
from examples.demo.lengths import Length, drawn, from_trace
from examples.demo.main import Demo
from examples.demo.pages import PageAllocator
from examples.demo.progress import Progress
from examples.demo.scheduler import Scheduler
from examples.demo.settings import settings
from opfacade import Plan, Preference
from opfacade.core.target import Target
from opfacade.errors import CompileError, InternalError
from opfacade.plans.attention import BatchPagedDecodeDescriptor, PagedKvCacheDescriptor

pytestmark = pytest.mark.usefixtures("one_thread")

LENGTHS = [Length(20, 5), Length(3, 1), Length(1, 9), Length(37, 4), Length(16, 16)]
SMALL = {"heads": 2, "kv_heads": 1, "head_dim": 16, "page_size": 4, "chunk": 16, "every": 4}


def small(**given):
    return settings("cpu", **{**SMALL, **given})


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "lengths.csv"
    lines = [f"2023-11-16 18:15:46.0,{length.context},{length.generated}" for length in LENGTHS]
    path.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines]) + "\n")
    return path


def demo(trace, *extra):
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    return CliRunner().invoke(main, ["--device=cpu", f"--trace={trace}", *flags, *extra])


def test_no_page_has_two_owners_and_all_come_back():
    served = Demo(small(), LENGTHS)
    for step in served.steps():
        owned = [page for request in served.scheduler.running for page in request.pages]
        assert len(set(owned)) == len(owned)
        assert {page: owner for page, owner in served.pool.owners.items() if page in owned} == served.pool.owners
        assert served.pool.free + len(owned) == served.pool.num_pages
        assert len(step.decode) + sum(part.rows for part in step.prefill) <= SMALL["chunk"]
    assert served.pool.free == served.pool.num_pages
    assert served.scheduler.completed == len(LENGTHS)
    assert served.sound


def test_every_prompt_token_is_prefilled_and_every_later_one_decoded():
    served = Demo(small(), LENGTHS)
    prefilled, decoded = Counter(), Counter()
    for step in served.steps():
        for part in step.prefill:
            prefilled[part.request.number] += part.rows
        for part in step.decode:
            decoded[part.request.number] += part.rows
    assert [prefilled[i] for i in range(len(LENGTHS))] == [length.context for length in LENGTHS]
    assert [decoded[i] for i in range(len(LENGTHS))] == [length.generated - 1 for length in LENGTHS]
    assert served.totals()["prompt_tokens"] == sum(prefilled.values())


def test_requests_wait_until_all_their_pages_can_be_kept():
    pool = PageAllocator(10)
    scheduler = Scheduler([Length(8, 9), Length(8, 17), Length(1, 1)], pool, page_size=4, chunk=100)
    scheduler.next_step()
    assert [request.number for request in scheduler.running] == [0, 1]
    assert pool.free == 6


def test_a_page_beyond_the_reservation_or_of_another_request_is_refused():
    pool = PageAllocator(3)
    assert pool.reserve(0, 1)
    assert not pool.reserve(1, 3)
    page = pool.take(0)
    with pytest.raises(InternalError, match="beyond its reservation"):
        pool.take(0)
    with pytest.raises(InternalError, match="not request 1's"):
        pool.give_back(1, [page])


def test_a_pool_too_small_for_the_longest_request_is_refused():
    with pytest.raises(ValueError, match=r"pages expected at least 10.*got 9"):
        Demo(small(pages=9), LENGTHS)


def test_lengths_come_from_the_trace(trace):
    assert from_trace(trace, 3) == LENGTHS[:3]
    assert from_trace(trace, 64) == LENGTHS


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ContextTokens,GeneratedTokens\n5,x\n", ":2 expected integers"),
        ("a,b\n1,2\n", ":2 expected integers"),
        ("ContextTokens,GeneratedTokens\n5,1\n0,3\n", ":3 expected at least 1 token"),
        ("ContextTokens,GeneratedTokens\n", "at least one request"),
        ("\xff\n\xfe\n", ":2 expected integers"),
    ],
)
def test_a_bad_trace_names_its_line(tmp_path, text, message):
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=message):
        from_trace(path, 64)


def test_drawn_lengths_repeat_with_their_seed_and_stay_in_range():
    lengths = drawn(500, seed=1)
    assert lengths == drawn(500, seed=1) != drawn(500, seed=2)
    assert all(1 <= length.context <= 4096 and 1 <= length.generated <= 1000 for length in lengths)
    assert 800 < sorted(length.context for length in lengths)[250] < 1300


def last(result):
    return result.output.splitlines()[-1]


def test_the_command_reports_and_ends_with_zero(trace, tmp_path):
    result = demo(trace, f"--json={tmp_path / 'out.json'}", "--verbose")
    assert result.exit_code == 0, result.output
    for word in (
        "append",
        "norm",
        "matmul",
        "qkv",
        "prefill",
        "gated",
        "quant",
        "decode",
        "requests completed       5",
        "attention-f32",
        "On an H200",
        "cuda/",
        "sample",
    ):
        assert word in result.output
    assert re.fullmatch(
        r"PASS: \d+ steps, [\d.]+( million)? elements checked, worst 0\.\d{3} of the bound; \d+ s", last(result)
    )
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["totals"]["worst_error_over_bound"] <= 1
    assert written["totals"]["drawn_tokens"] >= 5
    assert all(run["sku"] in written["skus"] for run in written["runs"])
    assert sum(run["rows"] for run in written["runs"] if "paged_prefill" in run["sku"]) == sum(x.context for x in LENGTHS)


def test_max_steps_ends_early(trace):
    result = demo(trace, "--max-steps=2", "--verbose")
    assert result.exit_code == 0
    assert "steps                    2" in result.output


def test_the_short_report_has_a_table_tokens_a_second_and_the_verdict(trace):
    result = demo(trace)
    lines = result.output.splitlines()
    head = next(at for at, line in enumerate(lines) if line.startswith("operator "))
    rows = {line.split()[0]: line.split()[1:] for line in lines[head + 1 : lines.index("", head)]}
    assert {"append", "prefill", "decode", "sample", "norm", "matmul", "qkv", "gated", "quant"} == rows.keys()
    assert rows["prefill"][1] == str(sum(length.context for length in LENGTHS))
    assert all(row[2] == "reference/torch" and float(row[3]) <= 1 for row in rows.values())
    tokens = sum(length.cached for length in LENGTHS)
    assert re.search(rf"^5 of 5 requests served, {tokens} tokens \(77 of prompts and 30 of answers\): \d+ tokens/s", lines[-2])
    assert last(result).startswith("PASS: ")
    assert len(lines) < 25


def test_everything_that_is_run_is_planned_before(monkeypatch):
    served = Demo(small(), LENGTHS)
    chosen, steps = ahead.plans(served.settings, served.lengths, served.pool.num_pages, Target.cpu())
    assert steps == len(list(served.steps()))
    assert {ran.plan.sku.id for ran in served.runs} == {plan.sku.id for plan in chosen}


def test_kernels_are_compiled_at_once_with_a_line_for_each(monkeypatch):
    cache = PagedKvCacheDescriptor(num_total_pages=8, page_size=16, num_kv_heads=1, head_dim=64, dtype="bf16", layout="HND")
    decode = BatchPagedDecodeDescriptor(batch_size=2, num_qo_heads=4, paged_kv=cache)
    plans = [Plan.select(decode, Preference(backend="cuda"), Target.parse("sm_90a"))]
    monkeypatch.setattr("opfacade.jit.is_built_for_plan", lambda spec: False)
    monkeypatch.setattr("opfacade.jit.build_for_plan", lambda spec, **how: None)
    shown = []
    assert re.fullmatch(r"1 of 1 kernels compiled on 1 cores in \d+ s, .*", ahead.compile_all(plans, shown.append))
    assert shown == ["compiling on 1 cores: 1 of 1 kernels ready"]
    assert ahead.compile_all([Plan.select(decode, target=Target.cpu())], shown.append) == ""
    monkeypatch.setattr("opfacade.jit.build_for_plan", fails)
    with pytest.raises(CompileError):
        ahead.compile_all(plans, shown.append)


def fails(spec, **how):
    raise CompileError("no compiler")


def test_progress_is_one_line_on_a_terminal_and_a_line_every_ten_seconds_elsewhere():
    now, terminal, log = [0.0], StringIO(), StringIO()
    lines = [Progress(stream, stream is terminal, lambda: now[0]) for stream in (terminal, log)]
    for seconds, text in ((0, "step 1 of 3"), (4, "step 2"), (11, "step 3 of 3"), (12, "step 3 of 3")):
        now[0] = seconds
        for line in lines:
            line.show(text)
    for line in lines:
        line.clear()
    assert log.getvalue() == "step 3 of 3\n"
    assert terminal.getvalue().endswith("\rstep 3 of 3\r           \r")


LAYER = (
    "norm", "matmul", "qkv_prepare", "paged_prefill", "matmul", "norm", "matmul", "gated_activation", "quantize", "matmul",
)  # fmt: skip
LOGITS = ("norm", "matmul", "sample")


def test_the_first_step_of_a_block_runs_a_whole_layer_and_checks_each_operator():
    served = Demo(small(), LENGTHS)
    steps = list(served.steps())
    ops = {step.number: [ran.plan.sku.op for ran in served.runs if ran.step == step.number] for step in steps}
    assert ops[1] == ["paged_kv_append", *LAYER]
    assert ops[5][-3:] == list(LOGITS)
    assert {step for step, ran in ops.items() if "quantize" in ran} == set(range(1, len(steps) + 1, SMALL["every"]))
    assert all(ran.report.elements for ran in served.runs)
    assert served.sound


def test_attention_of_a_layer_takes_its_heads_and_its_rows_are_quantised(monkeypatch):
    from opfacade.plan import Plan

    seen, run = {}, Plan.run

    def kept(plan, args, workspace=None):
        run(plan, args, workspace)
        seen.setdefault(plan.sku.op, []).append(args)

    monkeypatch.setattr(Plan, "run", kept)
    assert list(Demo(small(max_steps=1), LENGTHS).steps())
    (prepared,), (prefill,) = seen["qkv_prepare"], seen["paged_prefill"]
    assert torch.equal(prefill.q, prepared.q_out)
    assert seen["norm"][1].residual.data_ptr() == seen["norm"][0].x.data_ptr()
    assert seen["quantize"][0].x.data_ptr() == seen["gated_activation"][0].out.data_ptr()


def test_heads_of_one_element_have_no_layer():
    served = Demo(small(head_dim=1, max_steps=1), LENGTHS)
    assert len(list(served.steps())) == 1
    assert {ran.plan.sku.op for ran in served.runs} == {"paged_kv_append", "paged_prefill"}


@pytest.mark.parametrize(
    ("op", "name"),
    [("norm", "out"), ("qkv_prepare", "q_out"), ("qkv_prepare", "k_data"), ("gated_activation", "out"), ("quantize", "scale")],
)
def test_a_wrong_result_of_the_layer_ends_with_one(trace, monkeypatch, op, name):
    from opfacade.plan import Plan

    run = Plan.run

    def spoiled(plan, args, workspace=None):
        run(plan, args, workspace)
        if plan.sku.op == op:
            tensor = getattr(args, name)
            place = (int(args.kv_indices[0]), 0, 0, 0) if name == "k_data" else (0,) * tensor.ndim
            tensor[place] = 2 * tensor[place] + 1

    monkeypatch.setattr(Plan, "run", spoiled)
    result = demo(trace, "--max-steps=1")
    assert result.exit_code == 1
    assert f"/{op}/" in next(line for line in result.output.splitlines() if line.startswith("WRONG: step 1"))
    assert last(result).startswith("FAIL: ")


@pytest.mark.parametrize("spoil", ["one output", "one appended row", "a token by its row"])
def test_a_wrong_result_ends_with_one(trace, monkeypatch, spoil):
    from opfacade.plan import Plan

    run, draws = Plan.run, Counter()

    def spoiled(plan, args, workspace=None):
        run(plan, args, workspace)
        if spoil == "a token by its row" and hasattr(args, "token"):
            draws["all"] += 1
            if draws["all"] % 2 == 0:  # the draw for the reversed requests
                args.token[0] = (args.token[0] + 1) % 1003
        if spoil == "one output" and hasattr(args, "lse"):
            args.o.add_(0.5)
        if spoil == "one appended row" and hasattr(args, "k_new"):
            args.k_data[int(args.kv_indices[-1]), 0, int(args.last_page_len[-1]) - 1, 0] += 1

    monkeypatch.setattr(Plan, "run", spoiled)
    result = demo(trace)
    assert result.exit_code == 1
    assert "WRONG: step" in result.output
    assert last(result).startswith("FAIL: ")


def test_wrong_settings_are_refused_with_the_field():
    result = CliRunner().invoke(main, ["--device=cpu", "--heads=0"])
    assert result.exit_code == 2
    assert "heads expected" in result.output
    assert "Traceback" not in result.output


def test_a_gpu_that_is_not_there_is_said_so(trace, monkeypatch):
    monkeypatch.setattr("examples.demo.server.Target.current", Target.cpu)
    result = demo(trace, "--device=cuda")
    assert result.exit_code == 2
    assert "expected a CUDA device, got none" in result.output


def swapped_halves(layer, descriptor, args):
    """Swaps gate and up values."""
    if descriptor.op == "gated_activation":
        args = replace(args, x=args.x.roll(args.x.shape[1] // 2, 1))
    return descriptor, args


def another_head(layer, descriptor, args):
    """Permutes the heads at the output projection."""
    if descriptor.op == "matmul" and args.weight is layer.o:
        args = replace(args, x=args.x.flip(1))
    return descriptor, args


def a_position_late(layer, descriptor, args):
    if descriptor.op == "qkv_prepare":
        args = replace(args, positions=args.positions + 1)
    return descriptor, args


@pytest.mark.parametrize("mistake", [swapped_halves, another_head, a_position_late])
def test_a_layer_whose_calls_are_right_and_put_together_wrongly_is_noticed(monkeypatch, mistake):
    """Each call passes its own check; the tokens do not."""
    for name in ("before", "behind"):
        calls = getattr(Layer, name)
        monkeypatch.setattr(Layer, name, lambda self, *given, calls=calls: (mistake(self, *one) for one in calls(self, *given)))
    served = Demo(small(), LENGTHS)
    list(served.steps())
    assert not served.sound
    worst = max(served.runs, key=lambda ran: ran.report.worst)
    assert "are not those of plain torch in f64" in worst.report.where


def test_tokens_of_a_layer_are_held_to_plain_torch(monkeypatch):
    rows = []
    monkeypatch.setattr(plain_layer, "unequal", lambda found, wanted: rows.append(found.shape[0]))
    served = Demo(small(), LENGTHS)
    drawing = [len(step.drawing) for step in served.steps() if step.number % SMALL["every"] == 1 and step.drawing]
    assert rows == drawing
    assert rows


def test_a_tie_is_no_error_and_another_token_or_a_nan_is_one():
    wanted = torch.randn(1, 64, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted[0, :2] = torch.tensor([3.0, 3.01])
    rounded, swapped = wanted.bfloat16(), wanted.clone()
    swapped[0, :2] = torch.tensor([3.02, 3.0])
    assert plain_layer.unequal(rounded, wanted) is None
    assert plain_layer.unequal(swapped.bfloat16(), wanted) is None
    assert plain_layer.unequal(swapped.float(), wanted) == 0
    assert plain_layer.unequal((wanted * 1.05).bfloat16(), wanted) == 0
    assert plain_layer.unequal(rounded * float("nan"), wanted) == 0
