"""``make bench``: every hot path beside its peer and its limit, as ratios measured in one run.

    python benchmarks/bench.py [scoring step encoding growth start] [--json FILE] [--markdown FILE]

The two sides of a ratio take turns; a ratio is the median over the turns, its spread the quartiles.
With one thread (the default) processor time is counted, which means the same on a busy machine.
Search and service have scripts of their own: ``search_speed.py`` and ``service_throughput.py``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pack_padded_sequence

import gaussmatch as gm
from gaussmatch.data.batches import Batch
from gaussmatch.encoders.base import Tokens
from gaussmatch.encoders.vocabulary import SPECIALS, Vocabulary
from gaussmatch.gaussian import Gaussian
from gaussmatch.matcher import build
from gaussmatch.recipe import LossRecipe, ModelRecipe
from gaussmatch.similarities import SIMILARITIES, similarity
from gaussmatch.training.objective import Objective, total


@dataclass(frozen=True)
class Row:
    """One ratio: what is measured, against what, its spread, and its limit where it has one."""

    section: str
    what: str
    against: str
    ratio: float
    low: float
    high: float
    limit: float | None = None
    least: bool = False

    @property
    def met(self) -> str:
        if self.limit is None:
            return ""
        good = self.ratio >= self.limit if self.least else self.ratio <= self.limit
        return f"{'≥' if self.least else '≤'} {self.limit:g}: {'yes' if good else 'NO'}"


def compare(ours: Callable[[], object], theirs: Callable[[], object], turns: int) -> np.ndarray:
    """Times of ours over theirs, turn by turn, after one turn to warm up."""
    ratios = []
    for turn in range(turns + 1):
        times = []
        for call in (ours, theirs) if turn % 2 else (theirs, ours):
            started = time.process_time()
            call()
            times.append(time.process_time() - started)
        if turn:
            ratios.append(times[0] / times[1] if turn % 2 else times[1] / times[0])
    return np.array(ratios)


def row(section: str, what: str, against: str, ratios: np.ndarray, **limit: float | bool) -> Row:
    low, half, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return Row(section, what, against, float(half), float(low), float(high), **limit)  # type: ignore[arg-type]


# ---- scoring ----


def gaussians(n: int, dim: int, seed: int) -> Gaussian:
    dice = torch.Generator().manual_seed(seed)
    mean = normalize(torch.randn(n, dim, generator=dice), dim=-1)
    return Gaussian(mean, 2 * torch.rand(n, dim, generator=dice) - 1)


def textbook(images: Gaussian, captions: Gaussian) -> Tensor:
    """−KL by ``torch.distributions``, one image after the other."""
    normal = torch.distributions.Normal
    right = normal(captions.mean, (captions.log_var / 2).exp())  # type: ignore[operator]
    rows = []
    for one in range(len(images)):
        left = normal(images.mean[one], (images.log_var[one] / 2).exp())  # type: ignore[index]
        rows.append(-torch.distributions.kl_divergence(left, right).sum(-1))
    return torch.stack(rows)


def sampled(images: Gaussian, captions: Gaussian, samples: int = 7) -> Tensor:
    """The mean distance of 7 × 7 samples, as Monte-Carlo scores compare two Gaussians."""
    left, right = (
        (g.mean[:, None] + (g.log_var / 2).exp()[:, None] * torch.randn(len(g), samples, g.dim))
        for g in (images, captions)
    )  # type: ignore[operator]
    far = torch.cdist(left.flatten(0, 1), right.flatten(0, 1))
    return -far.view(len(images), samples, len(captions), samples).mean((1, 3))


def scoring(options: argparse.Namespace) -> Iterator[Row]:
    n, m, dim = options.images, options.captions, options.dim
    images, captions = gaussians(n, dim, 0), gaussians(m, dim, 1)
    for name, form in SIMILARITIES.items():
        if form.no_lift is not None:
            continue
        s = similarity(name).for_query("captions")
        pairs = list(zip(s.lift_images(images), s.lift_captions(captions), strict=True))
        left, right = (side[0].float() for side in zip(*pairs, strict=True))
        ratios = compare(
            lambda s=s: s.matrix(images, captions),
            lambda a=left, b=right: a @ b.T,
            options.turns,
        )
        limit = 2.2 if len(pairs) == 2 else 1.15
        what = f"{name}, {n:,} × {m:,}, D = {dim}"
        yield row("scoring", what, "its bare float32 product", ratios, limit=limit)
    kl = similarity("kl")
    few, some = images[:100], captions[:500]
    for name, other in (("torch.distributions", textbook), ("7 × 7 samples", sampled)):
        ratios = compare(lambda f=other: f(few, some), lambda: kl.matrix(few, some), options.turns)
        what = f"{name}, 100 × 500, D = {dim}"
        yield row("scoring", what, "KL here", ratios, limit=20.0, least=True)


# ---- a training step ----


class PublishedText(nn.Module):
    """Captions as the published code of VSE++ encodes them: embedding, packed GRU, last state."""

    def __init__(self, words: int, dim: int, word_dim: int = 300) -> None:
        super().__init__()
        self.embed, self.rnn = (
            nn.Embedding(words, word_dim),
            nn.GRU(word_dim, dim, batch_first=True),
        )

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(ids), lengths, batch_first=True)
        _, last = self.rnn(packed)
        return last[0]


def step(options: argparse.Namespace) -> Iterator[Row]:
    batch, dim, words, width = 128, options.dim, 8000, 2048
    dice = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, 19, (batch,), generator=dice).sort(descending=True).values
    ids = torch.randint(1, words, (batch, int(lengths.max())), generator=dice)
    ids = ids.masked_fill(torch.arange(ids.shape[1]) >= lengths[:, None], 0)
    features = torch.randn(batch, width, generator=dice)
    taken = Batch(features, Tokens(ids, lengths), torch.arange(batch))

    def ours(probabilistic: bool) -> Callable[[], None]:
        recipe = ModelRecipe(
            dim=dim,
            probabilistic=probabilistic,
            similarity="wasserstein" if probabilistic else "cosine",
            feature_dim=width,
        )
        torch.manual_seed(0)
        matcher = build(recipe, Vocabulary.of([*SPECIALS, *(f"w{k}" for k in range(words - 4))]))
        objective = Objective.of_epoch(LossRecipe(), 1)
        adam = torch.optim.Adam(matcher.parameters(), 2e-4)

        def call() -> None:
            adam.zero_grad()
            total(objective(matcher, taken)).backward()
            nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
            adam.step()

        return call

    def published(twin: bool) -> Callable[[], None]:
        torch.manual_seed(0)
        parts = nn.ModuleList()
        for _ in range(2 if twin else 1):
            parts.append(nn.ModuleList([nn.Linear(width, dim), PublishedText(words, dim)]))
        adam = torch.optim.Adam(parts.parameters(), 2e-4)

        def call() -> None:
            adam.zero_grad()
            image = normalize(parts[0][0](features), dim=-1)
            text = normalize(parts[0][1](ids, lengths), dim=-1)
            if twin:
                spread = [(parts[1][0](features) / 2).exp(), (parts[1][1](ids, lengths) / 2).exp()]
                scores = -(torch.cdist(image, text) ** 2 + torch.cdist(*spread) ** 2)
            else:
                scores = image @ text.T
            own = scores.diag()
            cost = (0.2 + scores - own[:, None]).clamp(0), (0.2 + scores - own[None]).clamp(0)
            mask = torch.eye(batch, dtype=torch.bool)
            loss = cost[0].masked_fill(mask, 0).max(1)[0].sum()
            (loss + cost[1].masked_fill(mask, 0).max(0)[0].sum()).backward()
            nn.utils.clip_grad_norm_(parts.parameters(), 2.0)
            adam.step()

        return call

    def floor(twins: int) -> Callable[[], None]:
        """The bare products: projection, input product and recurrence, forward and twice back."""
        tokens, longest = int(lengths.sum()), int(lengths.max())
        running = [int((lengths > t).sum()) for t in range(longest)]
        x, w = torch.randn(batch, width), torch.randn(width, dim)
        e, u = torch.randn(tokens, 300), torch.randn(300, 3 * dim)
        h, r = torch.randn(batch, dim), torch.randn(dim, 3 * dim)
        g = torch.randn(batch, 3 * dim)

        def call() -> None:
            for _ in range(twins):
                for _ in range(2):
                    x @ w
                for _ in range(3):
                    e @ u
                for n in running:
                    h[:n] @ r
                    g[:n] @ r.T
                    h[:n].T @ g[:n]

        return call

    for name, twin in (("points", False), ("Gaussians", True)):
        ratios = compare(ours(twin), published(twin), options.turns)
        what = f"{name}, batch {batch}, D = {dim}"
        yield row("step", what, "the published way, plain PyTorch", ratios)
        ratios = compare(ours(twin), floor(1 + twin), options.turns)
        yield row("step", what, "its bare products", ratios, limit=1.12)


# ---- encoding ----


def encoding(options: argparse.Namespace) -> Iterator[Row]:
    try:
        model = gm.load("photos")
        texts = [f"a dog number {k} runs on the beach" for k in range(256)]
        encoders = model.matcher.part("image").encoders
        tower, sentences = encoders.image_tower, encoders.text_tower
    except (ImportError, OSError, ValueError) as error:
        print(f"encoding is left out: {error}", file=sys.stderr)
        return
    from PIL import Image

    dice = np.random.default_rng(0)
    pictures = [
        Image.fromarray(dice.integers(0, 255, (260, 260, 3), dtype=np.uint8)) for _ in range(16)
    ]
    pixels = torch.stack([tower.transform(picture) for picture in pictures])

    @torch.inference_mode()
    def bare() -> None:
        tower(pixels)

    ratios = compare(lambda: model.encode_images(pictures), bare, options.turns)
    yield row("encoding", "16 photos, Model.encode_images", "the bare network", ratios, limit=1.11)
    ratios = compare(
        lambda: model.encode_texts(texts), lambda: sentences.encode(texts), options.turns
    )
    what = "256 texts, Model.encode_texts"
    yield row("encoding", what, "the bare sentence encoder", ratios, limit=1.11)


# ---- growth ----


def growth(options: argparse.Namespace) -> Iterator[Row]:
    """How the time grows when a size doubles: 2 is linear."""
    kl = similarity("kl")
    images, captions = gaussians(500, 256, 0), gaussians(8000, 256, 1)
    for n in (1000, 2000, 4000):
        ratios = compare(
            lambda n=n: kl.matrix(images, captions[: 2 * n]),
            lambda n=n: kl.matrix(images, captions[:n]),
            options.turns,
        )
        yield row("growth", f"KL of 500 × {2 * n:,}, D = 256", f"500 × {n:,}", ratios, limit=2.6)
    for dim in (128, 256, 512):
        wide, narrow = ((gaussians(500, d, 0), gaussians(2000, d, 1)) for d in (2 * dim, dim))
        ratios = compare(
            lambda g=wide: kl.matrix(*g), lambda g=narrow: kl.matrix(*g), options.turns
        )
        yield row("growth", f"KL of 500 × 2,000, D = {2 * dim}", f"D = {dim}", ratios, limit=2.6)
    with tempfile.TemporaryDirectory() as folder:
        gallery = gaussians(40_000, 64, 2)
        indexes = []
        for n in (10_000, 20_000, 40_000):
            index = gm.Index.create(Path(folder) / str(n), similarity="kl")
            index.add(gallery[:n], [gm.index.Record(str(k)) for k in range(n)])
            indexes.append(index)
        queries = gaussians(50, 64, 3)
        for small, large in pairwise(indexes):
            ratios = compare(
                lambda i=large: i.search(queries, 10),
                lambda i=small: i.search(queries, 10),
                options.turns,
            )
            what = f"exact search of {len(large):,}"
            yield row("growth", what, f"{len(small):,}", ratios, limit=2.6)


# ---- start-up ----


def child_seconds(words: list[str]) -> float:
    """Processor time of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(options: argparse.Namespace) -> Iterator[Row]:
    python = [sys.executable, "-c"]
    ratios = [
        child_seconds([*python, "import gaussmatch as gm; gm.Gaussian"])
        / child_seconds([*python, "import torch"])
        for _ in range(options.turns)
    ]
    yield row("start", "import gaussmatch, first use", "import torch", np.array(ratios), limit=1.2)
    seconds = [child_seconds([sys.executable, "-m", "gaussmatch", "--help"]) for _ in range(3)]
    yield row("start", "gaussmatch --help, seconds", "a second", np.array(seconds), limit=0.3)


SECTIONS = {
    "scoring": scoring,
    "step": step,
    "encoding": encoding,
    "growth": growth,
    "start": start,
}


def machine() -> dict[str, str | int]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(": ")[2] if names else cpu
    return {
        "processor": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
    }


def table(rows: list[Row]) -> str:
    lines = ["| | what | against | ratio | quartiles | limit |", "|---|---|---|---|---|---|"]
    for r in rows:
        spread = f"{r.low:.2f}–{r.high:.2f}"
        cells = (r.section, r.what, r.against, f"**{r.ratio:.2f}**", spread, r.met)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of every hot path, in one run.")
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--images", type=int, default=2000, help="of the scoring")
    parser.add_argument("--captions", type=int, default=5000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    for name in options.sections or SECTIONS:
        for made in SECTIONS[name](options):
            rows.append(made)
            what = f"{made.section:9} {made.what:44} / {made.against:34}"
            print(f"{what} {made.ratio:7.2f}  {made.met}", flush=True)
    found = {"machine": machine(), "rows": [asdict(r) for r in rows]}
    for path in filter(None, (options.json, options.markdown)):
        path.parent.mkdir(parents=True, exist_ok=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.markdown:
        about = ", ".join(f"{key} {value}" for key, value in machine().items())
        options.markdown.write_text(f"{about}\n\n{table(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
