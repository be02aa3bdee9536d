"""The examples of docs/torch_compile.md run, and the first gives what the plan gives without torch.compile."""

import re
from pathlib import Path

import torch

from opfacade.plans.attention import BatchPagedDecodeArgs

PAGE = Path(__file__).resolve().parents[2] / "docs/torch_compile.md"


def test_the_examples_give_what_the_plans_give():
    first, *others = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names = {}
    torch.manual_seed(4)
    exec(compile(first, str(PAGE), "exec"), names)
    torch.manual_seed(4)
    k, v = torch.randn(2, 8, 4, 2, 16)
    q = (torch.randn(2, 64) * 2).view(2, 4, 16)
    args = BatchPagedDecodeArgs(q=q, k_data=k, v_data=v, o=torch.empty_like(q), **names["table"])
    names["plan"].run(args)
    assert torch.allclose(names["y"], args.o.view(2, 64) + 1)
    assert args.o.abs().sum() > 0
    assert len(others) == 2
    for example in others:  # they check their results themselves
        exec(compile(example, str(PAGE), "exec"), names)
