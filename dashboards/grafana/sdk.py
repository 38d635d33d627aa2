"""Grafana's SDK, imported in one place: it warns on import that schema version 42 has a successor.

We write version 42 on purpose: every Grafana since 10 reads it, the successor needs 12 or newer.
"""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.builders import (
        bargauge,
        heatmap,
        prometheus,
        stat,
        statetimeline,
        table,
        timeseries,
    )
    from grafana_foundation_sdk.builders import common as common_builders
    from grafana_foundation_sdk.builders import dashboard as builders
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models import common
    from grafana_foundation_sdk.models import dashboard as models
    from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = [
    "JSONEncoder",
    "PromQueryFormat",
    "bargauge",
    "builders",
    "common",
    "common_builders",
    "heatmap",
    "models",
    "prometheus",
    "stat",
    "statetimeline",
    "table",
    "timeseries",
]
