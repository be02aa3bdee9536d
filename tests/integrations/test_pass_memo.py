"""Values that the layers of one pass share are dropped with their tensors."""

import gc
import weakref
from types import SimpleNamespace

import torch

from opfacade.integrations.pass_memo import PassMemo


class Value:
    """Stands for a packed mask."""


def test_a_value_goes_with_the_tensor_it_was_made_from():
    memo, masks = PassMemo(), [torch.ones(2) for _ in range(3)]
    values = [memo.get(SimpleNamespace(layer_idx=0), (mask,), id(mask), Value) for mask in masks]
    alive = [weakref.ref(value) for value in values]
    del values, masks[1]
    gc.collect()
    assert [ref() is not None for ref in alive] == [True, False, True]
    later = memo.get(SimpleNamespace(layer_idx=1), (masks[0],), id(masks[0]), Value)
    assert later is alive[0]()


def test_the_death_of_an_older_source_leaves_a_newer_value_of_the_same_key():
    memo = PassMemo()
    old, new = torch.ones(1), torch.ones(1)
    memo.get(SimpleNamespace(layer_idx=0), (old,), "key", Value)
    kept = memo.get(SimpleNamespace(layer_idx=0), (new,), "key", Value)
    del old
    gc.collect()
    assert memo.get(SimpleNamespace(layer_idx=1), (new,), "key", Value) is kept
