"""What an engineer passes by mistake is answered by one line that says what to wrap with what.

In a process of its own: here the shapes of the core are checked by beartype, which answers first.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from gaussmatch.core.gaussian import Gaussian
from gaussmatch.models.encoders.adapter import Standardize
from gaussmatch.models.model import Model

CODE = """
import numpy as np, torch, gaussmatch as gm

points, g = np.zeros((2, 4), dtype=np.float32), gm.Gaussian(torch.zeros(2, 4), torch.zeros(2, 4))
wide = gm.Gaussian(torch.zeros(2, 6), torch.zeros(2, 6))
index = gm.Index.create("i", similarity="kl")
index.add(g, [gm.Record("a"), gm.Record("b")])
kl = gm.similarity("kl")
for mistake in (
    lambda: index.search(points),
    lambda: index.search("two dogs"),
    lambda: index.search(wide),
    lambda: index.search(g[0]),
    lambda: index.search(g, where="taken>=2023"),
    lambda: index.add(points, [gm.Record("c"), gm.Record("d")]),
    lambda: index.add(g, ["c", "d"]),
    lambda: index.add(wide, [gm.Record("c"), gm.Record("d")]),
    lambda: kl.matrix(g.mean, g.mean),
    lambda: kl.paired(g, points),
    lambda: kl.matrix(g, wide),
    lambda: gm.Gaussian(points),
    lambda: gm.Gaussian(torch.zeros(2, 4, dtype=torch.long)),
):
    try:
        mistake()
    except (TypeError, ValueError) as error:
        print(type(error).__name__, error)
    else:
        print("nothing was said")
"""
WRAP = (
    "; wrap it: gm.Gaussian(torch.as_tensor(x).float()) for points, "
    "gm.Gaussian(mean, log_var) for distributions"
)
SAID = f"""
TypeError queries must be a Gaussian, got ndarray (2, 4); embeddings: index.model.encode_texts(x) \
or encode_images(x); otherwise {WRAP.removeprefix("; ")}
TypeError queries must be a Gaussian, got str; search_text takes words, search_image pictures, \
search_id an id
ValueError queries have D = 6, the index has D = 4: encode them with the model that the index was \
made with
ValueError queries must be a batch (n, D), got (4,); one query is a batch too: queries[None]
TypeError filter: 'taken>=2023' is not a mapping; write it as {{'split': 'test'}} or \
{{'taken': {{'gte': '2023-05'}}}}
TypeError gaussians must be a Gaussian, got ndarray (2, 4){WRAP}
TypeError records[0] must be a Record, got str; wrap it: gm.Record(id, {{field: \
value}})
ValueError the index holds Gaussians with D = 4 and D variances (ellipsoids), these have D = 6 and \
D variances (ellipsoids): encode them with the model that the index was made with
TypeError images must be a Gaussian, got Tensor (2, 4){WRAP}
TypeError captions must be a Gaussian, got ndarray (2, 4){WRAP}
ValueError images have D = 4, captions have D = 6: encode both with the same model
TypeError mean must be a floating-point torch.Tensor of shape (..., D), got ndarray (2, 4); \
convert it: torch.as_tensor(x).float()
TypeError mean must be a floating-point torch.Tensor of shape (..., D), got Tensor (2, 4) of \
torch.int64; convert it: torch.as_tensor(x).float()
"""


def test_wrong_types_and_widths_are_answered_with_help(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == SAID.strip().splitlines()


def test_embeddings_of_another_width_and_bare_arrays_are_named() -> None:
    with pytest.raises(ValueError, match="embeddings of 4 values; this model was trained on 3"):
        Standardize(3, 1.0)(torch.zeros(2, 4))
    images = Gaussian(torch.zeros(2, 4), torch.zeros(2, 4))
    with pytest.raises(TypeError, match=r"captions must be .* model\.encode_texts\(x\); otherwise"):
        Model.similarity(None, images, torch.zeros(2, 4))  # type: ignore[arg-type]
