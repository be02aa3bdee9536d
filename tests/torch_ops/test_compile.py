"""torch.compile(fullgraph=True) of a Llama on the ops: the tokens of eager mode, and no graph for a plan."""

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from opfacade.errors import GradNotSupportedError, PlanStateError
from tests.torch_ops import tiny_llama as llama

PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6, 5], [3, 5, 8, 9, 7], [1, 1, 2, 3, 5, 8], [2, 7, 1], [4, 4, 4, 4, 4, 4]]
# inductor includes what the others do
BACKENDS = [*(pytest.param(name, marks=pytest.mark.heavy) for name in ("eager", "aot_eager")), "inductor"]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(11)
    return llama.Llama()


class Serving:
    """Prompts on separate pages, and the two compiled steps; `counter` counts graphs."""

    def __init__(self, model, backend):
        self.model, self.counter = model, CompileCounterWithBackend(backend)
        self.decode, self.prefill = (
            torch.compile(step, backend=self.counter, fullgraph=True) if backend != "none" else step
            for step in (llama.decode, llama.prefill)
        )

    def start(self, prompts):
        shape = (llama.LAYERS, llama.PAGES, llama.PAGE, llama.KV_HEADS, llama.DIM)
        self.cache = torch.full(shape, float("nan")), torch.full(shape, float("nan"))
        self.rows = torch.arange(len(prompts) * llama.ROW, dtype=torch.int32).view(len(prompts), llama.ROW).flip(1).contiguous()
        self.lens = torch.tensor([len(p) for p in prompts], dtype=torch.int32)
        indptr = torch.zeros(len(prompts) + 1, dtype=torch.int32)
        indptr[1:] = self.lens.cumsum(0)
        tokens = torch.tensor([t for p in prompts for t in p])
        positions = torch.cat([torch.arange(len(p)) for p in prompts])
        append, attention = self.plans = llama.prefill_plans(len(prompts), len(tokens))
        return self.prefill(self.model, tokens, positions, indptr, self.cache, self.table, append.handle, attention.handle)

    @property
    def table(self):
        return {"block_table": self.rows, "kv_lens": self.lens}

    def step(self, tokens, **fields):
        self.lens = self.lens + 1
        append, attention = self.plans = llama.decode_plans(len(tokens), **fields)
        return self.decode(self.model, tokens, self.cache, self.table, append.handle, attention.handle)

    def generate(self, prompts, steps):
        found = [self.start(prompts)]
        while len(found) < steps:
            found.append(self.step(found[-1]))
        return torch.stack(found, 1).tolist()


def test_the_ops_in_eager_mode_give_the_tokens_of_the_model_without_a_cache(model):
    wanted = [llama.dense_tokens(model, prompt, 8) for prompt in PROMPTS]
    assert Serving(model, "none").generate(PROMPTS, 8) == wanted
    assert len({tuple(tokens) for tokens in wanted}) > 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_model_gives_the_tokens_of_eager_mode(model, backend):
    serving, eager = Serving(model, backend), Serving(model, "none")
    counts = []
    for batch in (2, 3, 5, 4):
        assert serving.generate(PROMPTS[:batch], 4) == eager.generate(PROMPTS[:batch], 4)
        counts.append(serving.counter.frame_count)
    # One graph each for prefill and decode, one more each for another batch size (and other plans), and then no more.
    assert counts == [2, 4, 4, 4]


def test_another_plan_of_the_same_size_needs_no_graph(model):
    serving = Serving(model, "eager")
    tokens = serving.start(PROMPTS[:3])
    counts = []
    for bound in range(30, 35):  # five plans of append and of decode
        tokens = serving.step(tokens, max_kv_indices=bound)
        counts.append(serving.counter.frame_count)
    # The second value of a handle makes it a symbol.
    assert counts == [2, 3, 3, 3, 3]


def attention_of(q, plan):
    """One decode over an empty cache."""
    pool = torch.zeros(llama.PAGES, llama.PAGE, llama.KV_HEADS, llama.DIM)
    table = {"block_table": torch.zeros(2, 1, dtype=torch.int32), "kv_lens": torch.zeros(2, dtype=torch.int32)}
    return llama.OPS.paged_decode_functional(plan.handle, q, pool, pool, **table, return_lse=False)[0]


def test_a_compiled_function_takes_the_plan_itself():
    counter, q = CompileCounterWithBackend("eager"), torch.zeros(2, llama.HEADS, llama.DIM)
    compiled = torch.compile(attention_of, backend=counter, fullgraph=True)
    plans = [llama.decode_plans(2, bound)[1] for bound in range(30, 35)]
    counts = []
    for plan in plans:
        assert torch.equal(compiled(q, plan), torch.zeros_like(q))
        counts.append(counter.frame_count)
    assert counts == [1, 2, 2, 2, 2]


def test_the_plan_of_the_call_is_the_one_that_runs(model):
    compiled, eager = Serving(model, "aot_eager"), Serving(model, "none")
    found = set()
    for window in (-1, 2, 0, 1):
        results = []
        for serving in (compiled, eager):
            tokens = serving.start(PROMPTS[:3])
            results.append([serving.step(tokens, window_left=window).tolist() for _ in range(5)])
        assert results[0] == results[1]
        found.add(str(results[0]))
    assert len(found) > 1  # windows matter


def test_a_plan_that_is_gone_is_an_error_inside_a_graph(model):
    serving = Serving(model, "eager")
    tokens = serving.start(PROMPTS[:2])
    serving.step(tokens), serving.step(tokens, window_left=1)
    append, _ = llama.decode_plans(2)
    with pytest.raises(PlanStateError, match="OPF-R020"):
        serving.decode(model, tokens, serving.cache, serving.table, append.handle, 2**40)


def test_a_gradient_is_refused_while_it_is_traced():
    plan = llama.decode_plans(2)[1]
    q = torch.zeros(2, llama.HEADS, llama.DIM, requires_grad=True)
    with torch.enable_grad(), pytest.raises(Exception, match="q expected requires_grad=False") as caught:
        torch.compile(attention_of, backend="aot_eager", fullgraph=True)(q, plan)
    chain = [caught.value]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    assert any(isinstance(error, GradNotSupportedError) for error in chain)
