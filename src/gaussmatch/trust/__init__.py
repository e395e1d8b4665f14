"""What one may believe of a model: is its uncertainty right, does it know the input, is it a match?

Everything here is learned from a run's own data, never from its test split, and kept with the run.
"""

from gaussmatch.trust.calibration import (
    Calibration,
    calibrate,
    calibrate_gaussians,
    calibrate_run,
)

__all__ = ["Calibration", "calibrate", "calibrate_gaussians", "calibrate_run"]
