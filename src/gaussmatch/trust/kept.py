"""What is kept with a run: its calibration and the verdict of its probe."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaussmatch.data import DataSet, load_data
from gaussmatch.files import read_json, write_json
from gaussmatch.run import load
from gaussmatch.trust.calibration import Calibration, calibrate
from gaussmatch.trust.probe import gauges_of, probe

CALIBRATION, PROBE = "calibration.json", "probe.json"


def calibrate_run(run: Path, data: DataSet | None = None) -> Calibration:
    """Learn what the numbers of a run mean, judge its uncertainty on validation unless a probe has
    done so, and keep both in its folder."""
    model = load(run)
    data = load_data(model.recipe.data) if data is None else data
    calibration = calibrate(model, data)
    found = read_json(run / PROBE) if (run / PROBE).is_file() else None
    if found is None:
        found = probe(model, data, calibration, split="dev")
    try:
        calibration.save(run / CALIBRATION)
        keep_probe(run, found)
    except OSError as error:
        warnings.warn(f"the calibration is not kept in {run}: {error}", stacklevel=2)
    return replace(calibration, gauges=gauges_of(found))


def kept_calibration(run: Path, data: DataSet | None = None) -> Calibration:
    """The calibration of a run with the verdict of its probe; made now if there is none, or with a
    warning empty if the run's own data cannot be read any more or is too little."""
    if (run / CALIBRATION).is_file():
        calibration = Calibration.load(run / CALIBRATION)
        found = read_json(run / PROBE) if (run / PROBE).is_file() else {"verdict": {}}
        return replace(calibration, gauges=gauges_of(found))
    try:
        return calibrate_run(run, data)
    except (OSError, ValueError) as error:
        warnings.warn(
            f"no percentiles and match probabilities from the model's own data: {error}",
            stacklevel=2,
        )
        return Calibration()


def keep_probe(run: Path, found: Mapping[str, Any]) -> None:
    """Keep what a probe found; its verdict decides which gauges are shown."""
    write_json(run / PROBE, found)
