"""Preference: valid preferences, and invalid ones."""

import pytest

from opfacade import Preference, Require
from opfacade.errors import DescriptorError
from opfacade.select.registry import descriptor_types

REFERENCE, KERNEL = (
    f"attention/paged_decode/{which}@1/o=f16/strided/-/g2.0" for which in ("reference/cpu/torch", "cuda/sm_90a/x")
)


def test_every_error_model_can_be_required():
    for model in {model for kind in descriptor_types().values() for model in kind.error_models}:
        assert Require(max_error_model=model).max_error_model == model
    with pytest.raises(DescriptorError) as caught:
        Preference(require={"nope": 1})
    assert (caught.value.code, caught.value.issues[0].argument) == ("OPF-D003", "require.nope")


def test_a_workspace_may_be_larger_than_2_gib():
    assert Preference(max_workspace_bytes=2**40).max_workspace_bytes == 2**40


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({}, False),
        ({"backend": "cuda"}, False),
        ({"backend": "reference"}, True),
        ({"pin": REFERENCE}, True),
        ({"pin": KERNEL}, False),
        ({"pin": KERNEL, "allow": (REFERENCE,)}, False),
        ({"allow": (REFERENCE,)}, True),
        ({"allow": (REFERENCE, KERNEL)}, False),
        ({"allow": ()}, False),
    ],
)
def test_the_reference_is_named_where_nothing_else_would_do(wish, named):
    assert Preference(**wish).names_reference is named
