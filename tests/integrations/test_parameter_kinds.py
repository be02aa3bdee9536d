"""Each kind of parameter that a model may have: plans accept it, or the module keeps its own code and a reason
names the kind.
"""

import pytest
import torch
from torch import nn

from opfacade import Plan, Preference, Target
from opfacade.errors import UnsupportedError
from opfacade.plans.norm import NormArgs, NormDescriptor

TAKEN = {
    "a tensor": lambda w: w,
    "a frozen parameter": lambda w: nn.Parameter(w, requires_grad=False),
    "a trained parameter": nn.Parameter,
    "a buffer": nn.Buffer,
    "made in inference mode": lambda w: inferred(w),
}


class Quantised(torch.Tensor):
    """A wrapper like torchao's: it reports a dtype, and holds another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return cls(args[0].inner)
        plain = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return function(*plain, **(kwargs or {}))


def inferred(weight):
    with torch.inference_mode():
        return weight.clone()


@pytest.fixture
def mesh(tmp_path):
    """A mesh with one rank."""
    from torch.distributed.device_mesh import init_device_mesh

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def sharded(weight, mesh):
    from torch.distributed.tensor import Shard, distribute_tensor

    return distribute_tensor(weight, mesh, [Shard(0)])


def with_weight(module, weight):
    del module.weight
    module.weight = weight
    return module.eval()


def norm_layer(weight):
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return with_weight(LlamaRMSNorm(weight.shape[0]), weight)


def runs(telemetry):
    return sum(counted["runs"] for counted in telemetry.snapshot().values())


@pytest.mark.parametrize("kind", TAKEN)
def test_a_plan_and_the_layers_of_a_model_take_it(kind, fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    weight, x = torch.rand(8) + 0.5, torch.randn(3, 8)
    want = nn.functional.rms_norm(x.double(), (8,), weight.double(), 1e-6)
    plan, out = (
        Plan.select(NormDescriptor(kind="rms", total_num_rows=3, hidden=8, dtype="f32"), target=Target.cpu()),
        torch.empty(3, 8),
    )
    model = nn.Sequential(norm_layer(TAKEN[kind](weight)))
    use_ops(model)
    with torch.no_grad():
        plan.run(NormArgs(x=x, weight=TAKEN[kind](weight), out=out))
        before = runs(fresh_telemetry)
        torch.testing.assert_close(model(x).double(), want, rtol=1e-5, atol=1e-6)
    assert runs(fresh_telemetry) == before + 1
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)


def test_a_sharded_parameter_is_refused_by_name_and_its_layer_keeps_its_own_code(mesh, fresh_telemetry):
    from torch.distributed.fsdp import fully_shard

    from opfacade.integrations.transformers import use_ops

    weight, x = torch.rand(8) + 0.5, torch.randn(3, 8)
    plan = Plan.select(NormDescriptor(kind="rms", total_num_rows=3, hidden=8, dtype="f32"), target=Target.cpu())
    with pytest.raises(UnsupportedError, match=r"weight expected a plain torch\.Tensor, got DTensor.*to_local.*OPF-A003"):
        plan.run(NormArgs(x=x, weight=sharded(weight, mesh), out=torch.empty(3, 8)))
    model = nn.Sequential(norm_layer(nn.Parameter(weight)))
    want = model(x)
    use_ops(fully_shard(model, mesh=mesh))
    assert type(model[0].weight).__name__ == "DTensor"
    with torch.no_grad():
        torch.testing.assert_close(model(x), want)
    assert runs(fresh_telemetry) == 1  # within the forward the parameter is whole


def test_a_linear_layer_of_a_wrapper_is_left_with_the_name_of_its_kind(mesh, fresh_telemetry):
    from opfacade.integrations.transformers import use_ops

    weights = {"Quantised": Quantised(torch.randn(6, 8)), "DTensor": sharded(torch.randn(6, 8), mesh)}
    model = nn.Sequential(*[with_weight(nn.Linear(8, 6, bias=False), nn.Parameter(w)) for w in weights.values()])
    left = use_ops(model, only=("linear",), products=Preference(backend="reference")).left
    assert list(left.values()) == [f"Linear: its weight is a {name} of torch.float32 on cpu" for name in weights]
    x = torch.randn(3, 8)
    with torch.no_grad():
        torch.testing.assert_close(model[0](x), x @ weights["Quantised"].inner.T)
    assert runs(fresh_telemetry) == 0
