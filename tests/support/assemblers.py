"""Selection as if every version of ptxas could build every kernel."""

from contextlib import contextmanager
from unittest.mock import patch

from opfacade.core.descriptor import forget_specializations
from opfacade.plan import forget_selections


@contextmanager
def any_assembler():
    """Kernels are selected whichever compiler is installed. Selections made with another answer are cleared
    before and after.
    """
    with patch("opfacade.backends.cuda.ptxas.release", return_value=None):
        _forget()
        yield
    _forget()


def _forget():
    forget_specializations()
    forget_selections()
