"""Exporters of metrics: the import path for users of `opfacade.telemetry.exporters`."""

from opfacade.telemetry.exporters import METRICS as METRICS
from opfacade.telemetry.exporters import SAMPLED as SAMPLED
from opfacade.telemetry.exporters import Labels as Labels
from opfacade.telemetry.exporters import Metric as Metric
from opfacade.telemetry.exporters import PrometheusCollector as PrometheusCollector
from opfacade.telemetry.exporters import Value as Value
from opfacade.telemetry.exporters import instrument as instrument
