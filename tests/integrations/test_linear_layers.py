"""use_ops for linear layers: they run as plans if a kernel accepts them or the preference names the reference; others are left
unchanged and listed.
"""

import pytest
import torch

from opfacade import Preference, errors
from tests.integrations.tiny_models import FAMILIES, generate, model_of, padded, prompts

pytestmark = [pytest.mark.transformers, pytest.mark.usefixtures("one_thread")]
REFERENCE = Preference(backend="reference")
TOLERANCE = 2e-5  # of the largest logit in f32


def logits(model, inputs):
    with torch.no_grad():
        return model(**inputs).logits


def products(counted):
    return sum(v["runs"] for sku, v in counted.snapshot().items() if sku.startswith("matmul/"))


@pytest.mark.parametrize(("family", "count"), [("llama", 15), ("qwen3", 15)])
def test_a_model_whose_products_are_plans_has_the_same_logits_and_tokens(family, count, fresh_telemetry):
    from opfacade.integrations.transformers import use_ops
    from opfacade.integrations.transformers.use_ops import KINDS

    model, inputs = model_of(family, FAMILIES[family][2]), padded(prompts(5, 23, 17))
    before, tokens = logits(model, inputs), generate(model, inputs, 4)
    replaced = use_ops(model, only=KINDS, products=REFERENCE, strict=True)
    assert len(replaced.linear) == count
    assert f"{count} linear" in str(replaced)
    after = logits(model, inputs)
    assert products(fresh_telemetry) == count
    assert (after - before).abs().max() <= TOLERANCE * before.abs().max()
    assert generate(model, inputs, 4) == tokens
    replaced.undo()
    assert torch.equal(logits(model, inputs), before)


def test_products_are_left_unless_they_are_named():
    from opfacade.integrations.transformers import use_ops

    model = model_of("llama", "sdpa")
    replaced = use_ops(model, strict=True, products=REFERENCE)
    assert replaced.linear == ()
    assert "forward" not in model.lm_head.__dict__


def test_the_reference_takes_no_linear_layer_by_default():
    from opfacade.integrations.transformers import use_ops

    model = model_of("llama", "sdpa")
    with pytest.raises(errors.UnsupportedError, match=r"q_proj expected a module that use_ops knows.*no candidate") as raised:
        use_ops(model, only=("linear",), strict=True)
    assert raised.value.code == "OPF-I009"
    replaced = use_ops(model, only=("linear",))
    assert replaced.linear == ()
    assert "a product of torch.float32 on cpu" in replaced.left["lm_head"]
    assert len(replaced.left) == 15


class _Doubled(torch.nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class _Kept(torch.nn.Linear):
    """A custom class with the forward of a linear layer."""


@pytest.mark.parametrize(("kind", "taken"), [(_Doubled, False), (_Kept, True), (torch.nn.Bilinear, False)])
def test_a_subclass_with_a_forward_of_its_own_is_no_linear_layer(kind, taken):
    from opfacade.integrations.transformers import use_ops

    model = torch.nn.Sequential(kind(*[8] * (3 if kind is torch.nn.Bilinear else 2))).eval()
    assert use_ops(model, only=("linear",), products=REFERENCE).linear == (("0",) if taken else ())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(8,), (0, 8), (2, 3, 8)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_computes_what_torch_does(dtype, shape, bias):
    from opfacade.integrations.transformers import use_ops

    torch.manual_seed(5)
    layer = torch.nn.Sequential(torch.nn.Linear(8, 6, bias=bias, dtype=dtype)).eval()
    x = torch.randn(shape).to(dtype)
    with torch.no_grad():
        want = torch.nn.functional.linear(x.double(), layer[0].weight.double(), layer[0].bias.double() if bias else None)
        use_ops(layer, only=("linear",), products=REFERENCE)
        got = layer(x)
    assert (got.dtype, got.shape) == (dtype, want.shape)
    torch.testing.assert_close(got.double(), want, rtol=2.0**-8 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)


def test_rows_and_weights_with_gaps_within_are_those_of_torch():
    from opfacade.integrations.transformers import use_ops

    layer, turned = (torch.nn.Sequential(torch.nn.Linear(8, 6)).eval() for _ in range(2))
    turned[0].weight = torch.nn.Parameter(torch.randn(8, 6).T)
    for model in (layer, turned):
        use_ops(model, only=("linear",), products=REFERENCE)
        for x in (torch.randn(8, 3).T, torch.randn(2, 8, 3).transpose(1, 2), torch.randn(3, 1).expand(3, 8)):
            with torch.no_grad():
                torch.testing.assert_close(model(x), torch.nn.functional.linear(x, model[0].weight, model[0].bias))


def test_gradients_training_and_other_dtypes_run_the_code_of_torch(fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    layer, x = torch.nn.Sequential(torch.nn.Linear(8, 6)).eval(), torch.randn(3, 8)
    use_ops(layer, only=("linear",), products=REFERENCE)
    layer(x).sum().backward()
    assert layer[0].weight.grad is not None
    with torch.no_grad():
        layer.train()(x)
        layer.eval()
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
    assert products(fresh_telemetry) == 0


def test_sizes_that_no_candidate_takes_run_the_code_of_torch(monkeypatch, fresh_telemetry):
    """A kernel may accept one row and decline three."""
    from opfacade.integrations.transformers import layer_ops, use_ops

    layer = torch.nn.Sequential(torch.nn.Linear(8, 6)).eval()
    use_ops(layer, only=("linear",), products=REFERENCE)
    monkeypatch.setattr(layer_ops, "taken", lambda descriptor, *rest: descriptor.total_num_rows < 3)
    x = torch.randn(3, 8)
    with torch.no_grad():
        assert torch.equal(layer(x), torch.nn.functional.linear(x, layer[0].weight, layer[0].bias))
        assert products(fresh_telemetry) == 0
        layer(x[:2])
    assert products(fresh_telemetry) == 1


def test_a_compiled_model_with_products_by_plans_is_one_graph(fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    model = torch.nn.Sequential(torch.nn.Linear(8, 6), torch.nn.SiLU(), torch.nn.Linear(6, 4, bias=False)).eval()
    use_ops(model, only=("linear",), products=REFERENCE)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(torch.ones(3, 8)), model(torch.ones(3, 8)))
        fresh_telemetry.reset()
        with torch.compiler.set_stance("fail_on_recompile"):
            compiled(torch.ones(5, 8))
    assert products(fresh_telemetry) == 2


def test_weights_of_products_that_load_in_place_count_and_so_do_later_ones():
    from opfacade.integrations.transformers import use_ops

    model, own = (model_of("qwen3", "sdpa") for _ in range(2))
    inputs = padded(prompts(5, 23, 17))
    use_ops(model, only=("linear",), products=REFERENCE, strict=True)
    for seed in (3, 4):
        logits(model, inputs)
        torch.manual_seed(seed)
        with torch.no_grad():
            for mine, theirs in zip(model.parameters(), own.parameters(), strict=True):
                theirs.copy_(theirs + torch.randn_like(theirs) * 0.1)
                mine.data.copy_(theirs)
        want = logits(own, inputs)
        assert (logits(model, inputs) - want).abs().max() <= TOLERANCE * want.abs().max()
