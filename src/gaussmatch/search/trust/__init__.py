"""When to trust a model: is its uncertainty right, does it know the input, is it a match?

Everything here is learned from a run's own data, never from its test split, and kept with the run.
"""

from gaussmatch.data.language import canonical
from gaussmatch.search.trust.calibration import Calibration, Judgment
from gaussmatch.search.trust.familiarity import Familiarity
from gaussmatch.search.trust.gauges import Gauge
from gaussmatch.search.trust.learn import (
    calibrate,
    calibrate_gaussians,
    calibrate_run,
    kept_calibration,
    with_inputs,
)
from gaussmatch.search.trust.probe import probe

__all__ = [
    "Calibration",
    "Familiarity",
    "Gauge",
    "Judgment",
    "calibrate",
    "calibrate_gaussians",
    "calibrate_run",
    "canonical",
    "kept_calibration",
    "probe",
    "with_inputs",
]
