"""Tests of all examples run those that a backend accepts here."""

import pytest


def accepted(subject):
    """The subject. Skips the test if its backend has no kernel for the problem on this device; the reference accepts all."""
    if declined := subject.declined:
        assert subject.backend != "reference", declined
        pytest.skip(declined)
    return subject
