"""A SKU id keeps its bits on a GPU too: the bits of every class of SKU are recorded for one GPU model and one
set of compilers.
"""

import pytest

from opfacade.testing import matrix
from opfacade.testing.subject import Subject
from tests.support import fingerprints
from tests.support.accepted import accepted
from tests.support.build_first import build_first

pytestmark = pytest.mark.gpu
ALL = matrix.matrix()


@pytest.fixture(scope="session")
def _built():
    build_first(ALL.values())


@pytest.mark.usefixtures("_built")
@pytest.mark.parametrize("kind", ALL)
def test_an_id_keeps_the_bits_on_record(kind):
    place = fingerprints.device_name()
    facts, found = fingerprints.read(place)
    subject = accepted(Subject(ALL[kind], "cuda", "cuda"))
    new = fingerprints.taken(kind, subject)
    assert new == fingerprints.taken(kind, subject)
    if facts is None:
        pytest.skip(f"nothing on record for {place}: `{fingerprints.command(place)}` records it")
    old = next((one for one in found if (one.problem, one.sku) == (new.problem, new.sku)), None)
    if old and old.inputs != new.inputs and facts["torch"] != fingerprints.host()["torch"]:
        pytest.skip(f"recorded with torch {facts['torch']}, which draws other inputs")
    assert not (why := fingerprints.wrong(found, new, fingerprints.command(place))), why
