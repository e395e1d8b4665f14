"""When to trust a model: is its uncertainty right, does it know the input, is it a match?

Everything here is learned from a run's own data, never from its test split, and kept with the run.
"""

from typing import TYPE_CHECKING

from gaussmatch.data.language import canonical as canonical
from gaussmatch.lazy import exported
from gaussmatch.search.trust.calibration import Calibration as Calibration
from gaussmatch.search.trust.calibration import Judgment as Judgment
from gaussmatch.search.trust.familiarity import Familiarity as Familiarity
from gaussmatch.search.trust.gauges import Gauge as Gauge

if TYPE_CHECKING:
    from gaussmatch.search.trust.learn import calibrate as calibrate
    from gaussmatch.search.trust.learn import calibrate_gaussians as calibrate_gaussians
    from gaussmatch.search.trust.learn import calibrate_run as calibrate_run
    from gaussmatch.search.trust.learn import kept_calibration as kept_calibration
    from gaussmatch.search.trust.learn import with_inputs as with_inputs

__getattr__ = exported(__name__, "learn")
