"""What the shipped calibration says after a search, on queries and photos that it has not seen.

    python benchmarks/fits.py COCO --also flickr8k=FLICKR8K --fitting fitting_photos.jsonl

Photos of the test split alone; then, with ``--fitting``, photos of all splits with the queries
that were set aside. For each source of truth, kind of query and size of gallery: ECE and Brier of
P(fits) beside a softmax over the gallery and a constant; the number said over the true one, how
often it is within a factor of 3, and how often the 80 % interval holds it; how often a number is
said; what the two guarantees of 0.9 hold; false "nothing here"; numbers said after all that fits
was removed, and the AUROC of noticing; AURC of the first result by P(fits) and by the softmax.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from gaussmatch.learn.evaluation.tables import plain_table
from gaussmatch.models.features import load_data
from gaussmatch.models.run import locate, read_recipe
from gaussmatch.search.trust.learn import fits_table, measure_kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("coco", help="the folder of COCO, with extracted features")
    parser.add_argument("--run", type=locate, default=locate("photos"), help="a run folder")
    parser.add_argument("--also", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--fitting", type=Path, help="photos that people say captions fit")
    options = parser.parse_args()
    recipe = replace(read_recipe(options.run).data, root=options.coco)
    others = [word.partition("=") for word in options.also]
    recipes = [recipe, *(replace(recipe, name=name, root=root) for name, _, root in others)]
    for one in map(load_data, recipes):
        for fitting in dict.fromkeys([None, options.fitting]):
            print(f"\n{one.name}, {'photos of all splits' if fitting else 'test photos'}\n")
            print(plain_table(fits_table(measure_kept(options.run, one, "test", fitting))))


if __name__ == "__main__":
    main()
