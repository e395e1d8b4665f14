"""``make bench``: every hot path beside its peer and its limit, as ratios measured in one run.

    python benchmarks/bench.py [SECTION …] [--quick] [--json FILE]

The two sides of a ratio take turns; a ratio is the median over the turns, and its spread the range
of their middle half. One thread, and processor time, which means the same on a busy machine; the
service, which is several processes, goes by the processor time of each. ``--quick`` takes small
sizes, to see that everything runs: limits are for the full ones and are not judged then.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import torch
from evaluation_speed import memory
from search_speed import K, clustered, filled, ids, recall_of, smallest
from service_throughput import ask, processor, serving
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pack_padded_sequence

import gaussmatch as gm
from gaussmatch.apps.cli import main as command
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.core.losses import sum_of
from gaussmatch.core.metrics import Relevance
from gaussmatch.core.similarities import SIMILARITIES, similarity
from gaussmatch.data.pictures import open_picture
from gaussmatch.learn.evaluation.retrieval import ranks
from gaussmatch.learn.evaluation.scores import Blocks
from gaussmatch.learn.training.batches import Batch
from gaussmatch.learn.training.loop import optimizer_of
from gaussmatch.learn.training.step import Objective
from gaussmatch.models.encoders.base import SPECIALS, Tokens, Vocabulary, pad
from gaussmatch.models.model import build
from gaussmatch.models.recipe import LossRecipe, ModelRecipe, TrainingRecipe
from gaussmatch.search import Index, IndexSettings, Record

Call = Callable[[], object]


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


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    images: int
    captions: int
    dim: int
    items: int
    opened: int
    queries: int
    photos: int
    turns: int
    seconds: float
    """Of one ratio: where a turn takes long, there are fewer."""


FULL = Sizes(5000, 25_000, 1024, 200_000, 1_000_000, 300, 1000, 5, 20)
QUICK = Sizes(1000, 5000, 512, 40_000, 100_000, 100, 48, 5, 6)


def used(call: Call, clock: Callable[[], float] = time.process_time) -> float:
    """Seconds, of processor unless another clock is given."""
    started = clock()
    call()
    return clock() - started


def compare(
    ours: Call, theirs: Call, sizes: Sizes, clock: Callable[[], float] = time.process_time
) -> np.ndarray:
    """Times of ours over theirs, turn by turn; one more turn to warm up where they are short."""
    ratios, started = [], time.process_time()
    for turn in range(sizes.turns + 1):
        first, second = (ours, theirs) if turn % 2 else (theirs, ours)
        a, b = used(first, clock), used(second, clock)
        spent = time.process_time() - started
        if turn or spent > sizes.seconds / 3:
            ratios.append(a / b if turn % 2 else b / a)
        if ratios and spent > sizes.seconds:
            break
    return np.array(ratios)


def row(
    section: str, what: str, against: str, ratios: Sequence[float] | np.ndarray, **limit: float
) -> Row:
    low, median, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    return Row(section, what, against, float(median), float(low), float(high), **limit)  # type: ignore[arg-type]


def slope(what: str, sizes: Sequence[int], calls: Sequence[Call], turns: int, limit: float) -> Row:
    """The exponent x of time ∝ size^x, fitted; the spread is that of neighbouring sizes. The sizes
    take turns, and the least time of each counts."""
    times = np.min([[used(call) for call in calls] for _ in range(turns)], axis=0)
    x, y = np.log(sizes), np.log(times)
    steps = np.diff(y) / np.diff(x)
    fitted = float(np.polyfit(x, y, 1)[0])
    what = f"{what} {sizes[0]:,} to {sizes[-1]:,}"
    low, high = float(steps.min()), float(steps.max())
    return Row("growth", what, "exponent of the time", fitted, low, high, limit)


# ---- 1. all-pairs scoring ----


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


def scored(s: gm.Similarity, images: Gaussian, captions: Gaussian) -> None:
    """Every score once, as evaluation goes through them."""
    for _ in Blocks(s, images, captions, torch.float32).tiles():
        pass


def scoring(sizes: Sizes) -> Iterator[Row]:
    n, m, dim = sizes.images, sizes.captions, sizes.dim
    images, captions = gaussians(n, dim, 0), gaussians(m, dim, 1)
    shape = f"{n:,} × {m:,}, D = {dim}"
    kl = similarity("kl")
    held = memory("VmRSS", reset=True)
    scored(kl, images, captions)
    peak = 1024 * (memory("VmHWM") - held)
    for what, size in (
        ("its embeddings", 8 * dim * (n + m)),
        ("an n × m × D tensor", 4 * n * m * dim),
    ):
        yield row("scoring", f"peak memory of kl, {shape}", what, [peak / size], limit=2.0)
    for name, form in SIMILARITIES.items():
        if form.no_lift is not None:
            continue
        s = similarity(name).for_query("captions")
        lifted = s.lift_images(images), s.lift_captions(captions)
        left, right = (side[0].float() for side in lifted)
        limit = 2.2 if len(lifted[0]) == 2 else 1.15
        del lifted
        bare = partial(torch.matmul, left, right.T)
        ratios = compare(partial(scored, s, images, captions), bare, sizes)
        yield row("scoring", f"{name}, {shape}", "its bare float32 product", ratios, limit=limit)
    few, some = images[: n // 10], captions[: m // 10]
    for name, other in (("torch.distributions", textbook), ("7 × 7 samples", sampled)):
        ratios = compare(partial(other, few, some), partial(scored, kl, few, some), sizes)
        what = f"{name}, {len(few)} × {len(some):,}, D = {dim}"
        yield row("scoring", what, "kl here", ratios, limit=20.0, least=True)


# ---- 2. a training step ----


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


def batch_of(size: int, longest: int = 18, words: int = 8000, width: int = 2048) -> Batch:
    """Captions of 8 tokens to ``longest``, sorted by length, and features."""
    dice = torch.Generator().manual_seed(0)
    lengths = torch.randint(8, longest + 1, (size,), generator=dice).sort(descending=True).values
    lengths[0] = longest
    ids = torch.randint(1, words, (size, longest), generator=dice)
    ids = ids.masked_fill(torch.arange(longest) >= lengths[:, None], 0)
    return Batch(torch.randn(size, width, generator=dice), Tokens(ids, lengths), torch.arange(size))


def our_step(
    batch: Batch, dim: int, twin: bool = True, adam: str = "adam", words: int = 8000
) -> Call:
    """Forward, backward and Adam as ``gaussmatch train`` does it."""
    recipe = ModelRecipe(
        dim=dim,
        probabilistic=twin,
        similarity="wasserstein" if twin else "cosine",
        feature_dim=batch.images.shape[1],
    )
    torch.manual_seed(0)
    matcher = build(recipe, Vocabulary.of([*SPECIALS, *(f"w{k}" for k in range(words - 4))]))
    objective = Objective.of_epoch(LossRecipe(), 1)
    optimizer = optimizer_of(matcher, TrainingRecipe(optimizer=adam))  # type: ignore[arg-type]

    def call() -> None:
        optimizer.zero_grad()
        sum_of(objective(matcher, batch).values()).backward()
        nn.utils.clip_grad_norm_(matcher.parameters(), 2.0)
        optimizer.step()

    return call


def step(sizes: Sizes) -> Iterator[Row]:
    batch, dim, words, width = 128, sizes.dim, 8000, 2048
    taken = batch_of(batch)
    features, (ids, lengths) = taken.images, taken.texts

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
        for adam in ("adam", "fused-adam"):
            what = f"{name}, batch {batch}, D = {dim}, {adam}"
            ratios = compare(our_step(taken, dim, twin, adam), published(twin), sizes)
            yield row("step", what, "the published way, plain PyTorch", ratios, limit=1.05)
            ratios = compare(our_step(taken, dim, twin, adam), floor(1 + twin), sizes)
            yield row("step", what, "its bare products", ratios, limit=1.12)


# ---- 3. search ----


def one_by_one(search: Callable[[object], object], queries: Sequence[object]) -> Call:
    def call() -> None:
        for query in queries:
            search(query)

    return call


def search(sizes: Sizes) -> Iterator[Row]:
    dim, settings = 128, IndexSettings(structure="hnsw")
    gallery, queries = clustered(sizes.items, sizes.queries, dim)
    means, probes = gallery.mean.numpy(), queries.mean.numpy()
    single = [queries[k : k + 1] for k in range(len(queries))]
    rows = [probes[k : k + 1] for k in range(len(probes))]
    of = f"{sizes.items:,} items, D = {dim}"
    records = [Record(str(k), {"tenth": k % 10, "rare": k % 1000}) for k in range(sizes.items)]
    with tempfile.TemporaryDirectory() as folder:
        flat, graph = (Path(folder) / name for name in ("flat", "hnsw"))
        Index.create(flat, similarity="kl").add(gallery, records)
        Index.create(graph, similarity="kl", settings=settings).add(gallery, records)
        del records  # whoever searches has opened an index, and not just made it
        exact, approximate = Index.open(flat), Index.open(graph)
        width = exact.backend.segments("images")[0].structure.arrays[0].shape[1]
        dice = np.random.default_rng(0)
        plain = faiss.IndexFlatIP(width)
        plain.add(dice.normal(size=(sizes.items, width)).astype(np.float32))
        wide = dice.normal(size=(len(queries), width)).astype(np.float32)
        some = single[:30], [wide[k : k + 1] for k in range(30)]
        ratios = compare(
            one_by_one(lambda q: exact.search(q, K), some[0]),
            one_by_one(lambda q: plain.search(q, K), some[1]),
            sizes,
        )
        yield row("search", f"exact, one at a time, {of}", "faiss flat", ratios, limit=1.1)
        ratios = compare(lambda: exact.search(queries, K), lambda: plain.search(wide, K), sizes)
        yield row("search", f"exact, {len(queries)} at once, {of}", "faiss flat", ratios, limit=1.1)
        del plain

        structure = approximate.backend.segments("images")[0].structure
        bare = faiss.IndexHNSWFlat(dim, settings.links)
        bare.hnsw.efConstruction = settings.construction
        bare.add(means)

        def widened(width: int) -> list[list[str]]:
            structure.settings, structure.width = replace(settings, search=width), width
            return ids(approximate, queries)

        def bare_widened(width: int) -> list[list[int]]:
            bare.hnsw.efSearch = width
            return bare.search(probes, K)[1].tolist()

        ours, _ = smallest(widened, ids(exact, queries))
        theirs, _ = smallest(bare_widened, faiss.knn(probes, means, K)[1].tolist())
        widened(ours), bare_widened(theirs)
        against = f"bare faiss on the means, efSearch {theirs}"
        what = f"hnsw, efSearch {ours}"
        one = one_by_one(lambda q: approximate.search(q, K), single)
        ratios = compare(one, one_by_one(lambda q: bare.search(q, K), rows), sizes)
        yield row("search", f"{what}, one at a time, {of}", against, ratios, limit=3.0)
        ratios = compare(
            lambda: approximate.search(queries, K), lambda: bare.search(probes, K), sizes
        )
        yield row("search", f"{what}, {len(queries)} at once", against, ratios, limit=1.5)
        for name, index, some_of in (("hnsw", approximate, single), ("flat", exact, single[:30])):
            plain_search = one_by_one(lambda q, i=index: i.search(q, K), some_of)
            for share, where in (("10 %", {"tenth": 3}), ("0.1 %", {"rare": 77})):
                first = used(lambda i=index, w=where: i.search(single[0], K, where=w))
                filtered = one_by_one(lambda q, i=index, w=where: i.search(q, K, where=w), some_of)
                right = recall_of(ids(index, queries, where), ids(exact, queries, where))
                what = f"{name}, a filter that leaves {share} (the first took {first:.2f} s, "
                what += f"recall {right:.2f}), {of}"
                ratios = compare(filtered, plain_search, sizes)
                yield row("search", what, "without a filter", ratios, limit=2.0)
    yield from opening(sizes)


def opening(sizes: Sizes) -> Iterator[Row]:
    """Open an index and answer one query, in a process of its own, small and large."""
    with tempfile.TemporaryDirectory() as folder:
        places = []
        for n in (1000, sizes.opened):
            gallery, queries = clustered(n, 1, 8)
            places.append(Path(folder) / str(n))
            filled(places[-1], "kl", "flat", gallery)
        queries.save(Path(folder) / "query")
        code = (
            "import sys, gaussmatch as gm; i = gm.Index.open(sys.argv[1]); "
            "i.search(gm.Gaussian.load(sys.argv[2]), 10)"
        )
        small, large = (
            lambda p=p: child_seconds([sys.executable, "-c", code, str(p), f"{folder}/query"])
            for p in places
        )
        ratios = [large() / small() for _ in range(3)]
        what = f"open an index of {sizes.opened:,} items and search, start included"
        yield row("search", what, "of 1,000 items", ratios, limit=1.5)


# ---- 4. service ----


def service(sizes: Sizes) -> Iterator[Row]:
    """32 clients and one worker against the library in batches of 32, by processor time a query;
    scenes, tiny: the smaller the model, the more HTTP weighs."""
    with tempfile.TemporaryDirectory() as folder:
        run, index = f"{folder}/run", f"{folder}/index"
        tiny = ["--data.size", "tiny", "--training.epochs", "1"]
        assert command(["train", "scenes/vsepp-kl", "--out", run, *tiny]) == 0
        assert command(["index", run, "--out", index]) == 0
        words = [index, "--queries", str(20 * sizes.queries), "--texts", f"{folder}/texts.json"]
        words += ["--concurrency", "32", "--seconds", "120"]
        shares, slowest = [], []
        with serving(Path(index), 1, Path(folder) / "log") as (pid, address):
            for _ in range(sizes.turns):
                alone = ask("library", words)
                before = processor(pid)
                through = ask("clients", [*words, "--address", address])
                assert not through["errors"]
                taken = (processor(pid) - before) / through["queries"]
                shares.append(alone["cpu"] / taken)
                slowest.append(through["p99"])
        what = "service, one worker, 32 clients: throughput by processor time"
        yield row("service", what, "the library's, batches of 32", shares, limit=0.8, least=True)
        yield row("service", "p99 of an answer, ms", "a millisecond", slowest)


# ---- 5. encoding ----


def encoding(sizes: Sizes) -> Iterator[Row]:
    """Photos and texts a second, so by the wall clock and with a thread for each core."""
    torch.set_num_threads(os.cpu_count() or 1)
    wall = time.perf_counter
    try:
        model = gm.load("photos")
        tower, sentences = (model.matcher.part(s).frozen.tower for s in ("image", "text"))
    except (ImportError, OSError, ValueError) as error:
        print(f"encoding is left out: {error}", file=sys.stderr)
        return
    from PIL import Image

    dice = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/{k}.jpg" for k in range(sizes.photos)]
        for file in files:  # 640 × 480, smooth as photos are
            few = Image.fromarray(dice.integers(0, 255, (12, 16, 3), dtype=np.uint8))
            few.resize((640, 480), Image.Resampling.BICUBIC).save(file, quality=90)
        pictures = [open_picture(file) for file in files[:48]]
        pixels = torch.stack([tower.transform(picture) for picture in pictures])
        texts = [f"a dog number {k} runs on the beach" for k in range(256)]
        tokens = pad(sentences.tokenizer.rows(texts))
        ways = {"torch": (None, None), "onnxruntime": (tower.fast, sentences.fast)}
        for name, fast in ways.items():
            if name == "onnxruntime" and None in fast:
                print("onnxruntime is left out: it is not installed", file=sys.stderr)
                continue
            tower.fast, sentences.fast = fast
            with torch.inference_mode():
                bare = lambda: [tower.run(some) for some in pixels.split(tower.at_once)]  # noqa: E731
                ours = partial(model.encode_images, pictures)
                what = f"{len(pictures)} photos, Model.encode_images, {name}"
                ratios = compare(ours, bare, sizes, wall)
                yield row("encoding", what, "the bare network", ratios, limit=1.11)
                ratios = compare(ours, bare, sizes)
                yield row("encoding", f"{what}, processor time", "the bare network", ratios)
                ratios = compare(
                    partial(model.encode_texts, texts), partial(sentences.run, tokens), sizes, wall
                )
                what = f"256 texts, Model.encode_texts, {name}"
                yield row("encoding", what, "the bare network", ratios, limit=1.11)
        decoding = used(lambda: [tower.transform(open_picture(file)) for file in files])
        processor, started = time.process_time(), wall()
        model.encode_images(files)
        whole, seconds = time.process_time() - processor, wall() - started
        what = f"decoding and transforming {sizes.photos:,} photos of 640 × 480, processor time"
        rate = f"encoding them from files ({sizes.photos / seconds:.0f}/s)"
        yield row("encoding", what, rate, [decoding / whole])


# ---- 6. growth ----


def growth(sizes: Sizes) -> Iterator[Row]:
    small = sizes.dim // 2
    batches = (32, 64, 128)
    calls = [our_step(batch_of(n), small) for n in batches]
    yield slope(f"step, D = {small}, batch", batches, calls, sizes.turns, 1.1)
    lengths = (9, 18, 36)
    calls = [our_step(batch_of(64, longest), small) for longest in lengths]
    yield slope(f"step, D = {small}, batch 64, longest caption", lengths, calls, sizes.turns, 1.1)
    dims = (small // 2, small, 2 * small)
    calls = [our_step(batch_of(64), dim) for dim in dims]
    yield slope("step, batch 64, D", dims, calls, sizes.turns, 2.0)
    kl, images = similarity("kl"), gaussians(100, 32, 0)
    galleries = [n for n in (1000, 10_000, 100_000, 1_000_000) if n <= sizes.opened]
    captions = gaussians(galleries[-1], 32, 1)

    def evaluated(n: int) -> None:
        pairs = Relevance.from_pairs(torch.arange(n), torch.arange(n) % 100, queries=n, gallery=100)
        ranks(kl, images, captions[:n], pairs)

    calls = [partial(evaluated, n) for n in galleries]
    yield slope("ranks of 100 images, both ways, captions", galleries, calls, sizes.turns, 1.1)
    with tempfile.TemporaryDirectory() as folder:
        counts = [sizes.items // 8, sizes.items // 4, sizes.items // 2]
        gallery, queries = clustered(counts[-1], 50, 64)
        for structure in ("flat", "hnsw"):
            made: dict[int, Index] = {}

            def built(n: int, structure: str = structure, made: dict[int, Index] = made) -> None:
                place = Path(folder) / f"{structure}-{n}-{len(made)}-{time.monotonic_ns()}"
                made[n] = filled(place, "kl", structure, gallery[:n])

            calls = [partial(built, n) for n in counts]
            yield slope(f"build {structure}, items", counts, calls, 2, 1.3)
            calls = [partial(index.search, queries, K) for index in made.values()]
            limit = 1.1 if structure == "flat" else 0.6
            yield slope(f"query {structure}, items", counts, calls, sizes.turns, limit)


# ---- 7. start-up ----


def child_seconds(words: list[str]) -> float:
    """Processor time of a process of its own."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def start(sizes: Sizes) -> Iterator[Row]:
    python = [sys.executable, "-c"]
    ratios = [
        child_seconds([*python, "import gaussmatch as gm; gm.Gaussian"])
        / child_seconds([*python, "import torch"])
        for _ in range(sizes.turns)
    ]
    yield row("start", "import gaussmatch, first use", "import torch", ratios, limit=1.2)
    shown = [sys.executable, "-m", "gaussmatch", "--help"]
    seconds = [child_seconds(shown) for _ in range(sizes.turns)]
    yield row("start", "gaussmatch --help, seconds", "a second", seconds, limit=0.3)


SECTIONS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "scoring": scoring,
    "step": step,
    "search": search,
    "service": service,
    "encoding": encoding,
    "growth": growth,
    "start": start,
}


def alone(section: str, quick: bool) -> list[Row]:
    """A section in a process of its own: what the others leave in memory would slow it down."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "rows.json"
        words = [sys.executable, __file__, section, "--json", str(found)]
        subprocess.run([*words, *(["--quick"] if quick else [])], check=True)
        kept = json.loads(found.read_text(encoding="utf-8"))["rows"]
        return [Row(**{name: row[name] for name in Row.__annotations__}) for row in kept]


def machine() -> dict[str, str | int]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].partition(": ")[2] if names else cpu
    return {
        "processor": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "faiss": faiss.__version__,
        "threads": torch.get_num_threads(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Ratios of every hot path, in one run.")
    parser.add_argument("sections", nargs="*", help=f"{', '.join(SECTIONS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes, no limits")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    options = parser.parse_args()
    unknown = [name for name in options.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]!r}; choose {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    sizes, about = QUICK if options.quick else FULL, machine()
    rows: list[Row] = []
    sections = options.sections or list(SECTIONS)
    for name in sections:
        started = time.monotonic()
        for made in SECTIONS[name](sizes) if len(sections) == 1 else alone(name, options.quick):
            made = replace(made, limit=None) if options.quick else made
            rows.append(made)
            if len(sections) == 1:
                print(f"{made.what} / {made.against}: {made.ratio:.3g}  {made.met}", flush=True)
        if len(sections) == 1:
            print(f"-- {name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        kept = [asdict(r) | {"met": r.met} for r in rows]
        found = {"machine": about, "sizes": asdict(sizes), "rows": kept}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
