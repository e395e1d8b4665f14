"""What the shipped calibration says after a search, on queries and photos that it has not seen.

    python benchmarks/fits.py COCO --also flickr8k=FLICKR8K --fitting fitting_photos.jsonl

Photos of the test split alone; then, with ``--fitting``, photos of all splits with the queries
that were set aside. For each kind of query and size of gallery, over all sources of truth and for
each: ECE and Brier of P(fits) beside a softmax over the gallery and a constant; the number said
over the true one, how often it is within a factor of 3, and how often the 80 % interval holds it;
how often a number is said; what the two guarantees of 0.9 hold; false "nothing here"; numbers said
after all that fits was removed, and the AUROC of noticing; AURC of the first result by P(fits) and
by the softmax. Last what must show (``MUST``), with how many cells of the tables show it and the
worst of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.features import load_data
from gaussmatch.models.run import locate, read_recipe
from gaussmatch.search.trust.judged import ALL
from gaussmatch.search.trust.learn import fits_table, measure_kept

SHORT = ("1", "2", "3-5")
MUST: dict[str, tuple[str, tuple[str, ...], float, float]] = {
    "ECE of P(fits)": ("ece", (*SHORT, "whole"), 0.0, 0.03),
    "said/true number, median": ("count_ratio", SHORT, 0.75, 1.33),
    "said/true number within 3×": ("within_3", SHORT, 0.9, 1.0),
    "80 % interval holds": ("in_interval", (*SHORT, "whole"), 0.75, 0.85),
    "recall at 0.9": ("recall", (*SHORT, "whole"), 0.88, 0.92),
    "the one at 0.9": ("one", (*SHORT, "whole"), 0.88, 0.92),
    "false “nothing here”": ("false_nothing", (*SHORT, "whole"), 0.0, 0.02),
    "“N match” of a removed topic": ("false_number", (*SHORT, "whole"), 0.0, 0.2),
}
"""What must show → its figure, kinds of queries, and bounds."""


def shown(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """What must show, in the rows over all sources."""
    table = [("what must show", "bounds", *(f"{kind} words" for kind in (*SHORT, "whole")))]
    for name, (figure, kinds, low, high) in MUST.items():
        cells = []
        for kind in (*SHORT, "whole"):
            values = [
                row[figure]
                for row in rows
                if row["source"] == ALL and row["kind"] == kind and row[figure] is not None
            ]
            if kind not in kinds or not values:
                cells.append("")
                continue
            good = sum(low <= value <= high for value in values)
            worst = max(values, key=lambda value: max(low - value, value - high))
            cells.append(f"{good} of {len(values)}, worst {worst:.3f}")
        table.append((name, f"{low:g}–{high:g}", *cells))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("coco", help="the folder of COCO, with extracted features")
    parser.add_argument("--run", type=locate, default=locate("photos"), help="a run folder")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--fitting", type=Path, help="photos that people say captions fit")
    parser.add_argument("--extracted", help="features in each folder, made by 'gaussmatch extract'")
    options = parser.parse_args()
    recipe = read_recipe(options.run).data
    extracted = options.extracted or recipe.extracted
    recipe = replace(recipe, root=options.coco, extracted=extracted, also={})
    others = [word.partition("=") for word in options.also]
    recipes = [recipe, *(replace(recipe, name=name, root=root) for name, _, root in others)]
    every = []
    for one in map(load_data, recipes):
        for fitting in dict.fromkeys([None, options.fitting]):
            rows = measure_kept(options.run, one, "test", fitting)
            print(f"\n{one.name}, {'photos of all splits' if fitting else 'test photos'}\n")
            print(plain_table(fits_table(rows)), flush=True)
            every += [row for row in rows if row["gallery"] == "images"]
    print("\nWhat must show: cells of the tables above that do\n")
    print(plain_table(shown(every)))


if __name__ == "__main__":
    main()
