"""The lists of shards and the draw from them on one GPU: the token equals that of `sample` on the whole row."""

import pytest
import torch

from opfacade import Plan, Preference, Target
from opfacade.backends.cuda.collective import sample_across
from opfacade.plans.collective import SampleAcrossArgs, SampleAcrossDescriptor
from opfacade.plans.sampling import SampleArgs, SampleDescriptor

pytestmark = pytest.mark.gpu
CONTROLS = {"temperature": True, "top_k": True, "max_top_k": 64, "top_p": True, "min_p": True}


def problem(rows, vocab, dtype):
    g = torch.Generator().manual_seed(rows)
    logits = torch.randn(rows, vocab, generator=g) * torch.linspace(0.3, 5, rows)[:, None]
    logits[: rows // 4] = (logits[: rows // 4] * 2).round() / 2  # this row has many ties
    values = {
        "temperature": torch.rand(rows, generator=g) * (torch.rand(rows, generator=g) > 0.2),
        "top_k": torch.randint(-1, 60, (rows,), generator=g, dtype=torch.int32),
        "top_p": torch.rand(rows, generator=g) * 1.1,
        "min_p": torch.rand(rows, generator=g) * 0.1,
        "seed": torch.randint(-(2**62), 2**62, (rows,), generator=g),
        "offset": torch.arange(rows),
    }
    return logits.to(dtype).cuda(), {name: value.cuda() for name, value in values.items()}


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("rows", [1, 7, 64, 300])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_the_token_equals_the_token_of_one_rank(dtype, rows, world):
    vocab, target = 32003, Target.current()
    shard = -(-vocab // world)
    logits, values = problem(rows, vocab, {"f32": torch.float32, "bf16": torch.bfloat16}[dtype])

    def made():
        return {n: torch.full((rows,), 7, dtype=t, device="cuda") for n, t in (("token", torch.int32), ("valid", torch.uint8))}

    whole = SampleArgs(logits=logits, **made(), **values)
    Plan.select(SampleDescriptor(total_num_rows=rows, vocab=vocab, dtype=dtype, **CONTROLS), Preference(backend="cuda")).run(
        whole
    )
    d = SampleAcrossDescriptor(world=world, total_num_rows=rows, vocab=vocab, shard=shard, dtype=dtype, **CONTROLS)
    lister, sent = sample_across.lister(d, target, True, ""), []
    for rank in range(world):
        own = torch.empty(2, rows, d.listed, device="cuda")
        width = min(shard, vocab - rank * shard)
        part = logits[:, rank * shard : rank * shard + width]
        lister(SampleAcrossArgs(logits=part, token=None, valid=None, **values), own, width)
        sent.append(own)
    args = SampleAcrossArgs(logits=logits, **made(), **values)
    sample_across.drawer_of_lists(d, target, True, "")(d, args, sent)
    assert args.token.tolist() == whole.token.tolist()
    assert args.valid.tolist() == whole.valid.tolist()
