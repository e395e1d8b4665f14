"""Search with an encoder of your own: an index of bare Gaussians that knows how sure it is.

Encoders and toy data are those of own_encoder.py. The index knows nothing of the encoders: it takes
Gaussians and gives ids, scores, and, once calibrated, percentiles and match probabilities.

    python examples/own_search.py [FOLDER]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
from own_encoder import draw, train

import gaussmatch as gm
from gaussmatch.core.metrics import Relevance, spearman
from gaussmatch.search import Hits, Index, IndexSettings, Record
from gaussmatch.search.trust import Calibration, calibrate_gaussians


def fits(images: torch.Tensor, captions: torch.Tensor) -> torch.Tensor:
    """captions × images: whether everything that a caption names is in the picture."""
    return captions @ images.round().T == captions.sum(-1, keepdim=True)


def calibration(encode_images, encode_captions) -> Calibration:  # type: ignore[no-untyped-def]
    """What scores and uncertainties mean, from 1,000 pairs that no encoder was trained on.
    Percentiles are shown if the uncertainty follows the number of pictures that captions fit."""
    x, c, _ = draw(1000)
    caption, image = fits(x, c).nonzero(as_tuple=True)
    truth = Relevance.from_pairs(caption, image, queries=len(c), gallery=len(x))
    images, captions = encode_images(x), encode_captions(c)
    learned = calibrate_gaussians(gm.similarity("kl"), images, captions, truth)
    rho = spearman(captions.uncertainty(), truth.counts.double())
    return replace(learned, gauges={"captions": rho > 0.5})


@torch.no_grad()
def main(folder: Path, steps: int = 1500) -> list[Hits]:
    with torch.enable_grad():
        encode_images, encode_captions = train(steps)
    index = Index.create(
        folder,
        similarity="kl",
        settings=IndexSettings(structure="flat"),  # "hnsw" for many
        calibration=calibration(encode_images, encode_captions),
    )
    x, c, named = draw(5000)
    index.add(
        encode_images(x), [Record(f"picture {i}", {"even": i % 2 == 0}) for i in range(len(x))]
    )
    vague, precise = (named == 1).nonzero()[0], (named == 4).nonzero()[0]
    queries = c[torch.cat([vague, precise])]
    answers = index.search(encode_captions(queries), k=3, where={"even": True})
    for text, hits in zip(("names one thing", "names all four"), answers, strict=True):
        print(f"a caption that {text}: {hits.phrase}")
        for hit in hits.hits:
            print(f"  {hit.id:14} score {hit.score:7.3f}   match {100 * hit.probability:3.0f} %")
    return answers


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else Path(tempfile.mkdtemp()) / "index")
