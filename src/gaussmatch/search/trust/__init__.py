"""When to trust a model: is its uncertainty right, does it know the input, is it a match?

Everything here is learned from a run's own data, never from its test split, and kept with the run.
"""

from gaussmatch.search.trust.calibration import Calibration, Judgement
from gaussmatch.search.trust.familiarity import Familiarity
from gaussmatch.search.trust.learn import (
    calibrate,
    calibrate_gaussians,
    calibrate_run,
    kept_calibration,
)
from gaussmatch.search.trust.probe import probe
from gaussmatch.search.trust.wording import canonical

__all__ = [
    "Calibration",
    "Familiarity",
    "Judgement",
    "calibrate",
    "calibrate_gaussians",
    "calibrate_run",
    "canonical",
    "kept_calibration",
    "probe",
]
