"""Crisscrossed Captions: people's scores of COCO captions with *other* COCO images.

``sits_{val,test}.csv``: caption, image, agg_score (0–5), sampling_method. Rows of the method
``c2i_intrasim`` with a score of at least 3 are the extra positives: 10,614 in test, which with
the 25,000 original pairs make 35,614.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from gaussmatch.data.check import Report
from gaussmatch.data.source import Source

AGREED = 3.0
_COLUMNS = ("caption", "image", "agg_score", "sampling_method")


@dataclass(frozen=True)
class Positives:
    """(caption id, image number) pairs of one file: COCO's own, and those that people added."""

    original: list[tuple[int, int]]
    extra: list[tuple[int, int]]

    @property
    def total(self) -> int:
        return len(self.original) + len(self.extra)


def score_files(root: Path) -> list[Path]:
    """The score files of a folder."""
    files = sorted(root.glob("sits_*.csv"))
    if not files:
        raise FileNotFoundError(f"{root}: no sits_*.csv; see 'gaussmatch data where cxc'")
    return files


def read_positives(path: Path) -> Positives:
    """The pairs of one file that match."""
    positives = Positives([], [])
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file)
        header = tuple(next(rows, ()))
        if header != _COLUMNS:
            raise ValueError(f"{path}, line 1: the columns must be {', '.join(_COLUMNS)}")
        for row in rows:
            place = f"{path}, line {rows.line_num}"
            try:
                said, shown, score, method = row
                caption = int(said.rsplit(":", 1)[1])
                image = int(Path(shown).stem.rsplit("_", 1)[1])
                value = float(score)
            except (ValueError, IndexError):
                raise ValueError(
                    f"{place}: not 'COCO_val2014:sentid:1,COCO_val2014_1.jpg,score,method'"
                ) from None
            if method == "c2i_original":
                positives.original.append((caption, image))
            elif method == "c2i_intrasim":
                if value >= AGREED:
                    positives.extra.append((caption, image))
            else:
                raise ValueError(f"{place}: unknown sampling_method {method!r}")
    return positives


def check(root: Path) -> Report:
    """How many pairs each file of scores holds."""
    report = Report()
    for path in score_files(root):
        found = read_positives(path)
        report.lines.append(
            f"{path.name}: {len(found.original):,} original pairs and {len(found.extra):,} extra "
            f"positives, {found.total:,} in all"
        )
    return report


SOURCE = Source(
    "cxc",
    where="""\
Crisscrossed Captions (Parekh et al. 2021), beside COCO:
  sits_val.csv, sits_test.csv
From: github.com/google-research-datasets/Crisscrossed-Captions, folder data.
Use: --data.name coco --data.cxc FOLDER.""",
    signs=("sits_*.csv",),
    check=check,
)
