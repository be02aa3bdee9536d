"""Values that the layers of one pass share are dropped with their tensors."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch

from opfacade.integrations import pass_memo
from opfacade.integrations.pass_memo import PassMemo


class Value:
    """A stub of a packed mask."""


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


def layers(memo, count, source):
    """The values that the layers of a pass receive."""
    return [memo.get(SimpleNamespace(layer_idx=layer), (source,), "key", Value) for layer in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_what_a_capture_made_is_shared_by_its_layers_and_held_by_nobody_afterwards(monkeypatch, count):
    """A graph tree refuses to record another size while an object unknown to it holds its memory."""
    memo, source = PassMemo(), torch.ones(1)
    warm = weakref.ref(layers(memo, count, source)[0])
    assert warm() is not None
    monkeypatch.setattr(pass_memo, "capturing", lambda tensor: True)
    made = layers(memo, count, source)
    assert len(set(map(id, made))) == 1
    captured = weakref.ref(made[0])
    del made
    gc.collect()
    assert captured() is None


def test_a_smaller_model_between_two_passes_costs_a_value_and_never_gives_a_wrong_one(monkeypatch):
    memo, source, other = PassMemo(), torch.ones(1), torch.zeros(1)
    layers(memo, 3, source), layers(memo, 2, other)
    monkeypatch.setattr(pass_memo, "capturing", lambda tensor: True)
    first, second, third = layers(memo, 3, source)
    assert first is second
    assert third is not first
