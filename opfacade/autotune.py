"""Measuring candidates: the import path for users of `opfacade.tune.tune`."""

from opfacade.tune.tune import Report as Report
from opfacade.tune.tune import Setup as Setup
from opfacade.tune.tune import TuneResult as TuneResult
from opfacade.tune.tune import eligible as eligible
from opfacade.tune.tune import proven as proven
from opfacade.tune.tune import tune as tune
