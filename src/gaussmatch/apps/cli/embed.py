"""``gaussmatch embed RUN SOURCE --out DIR``: items → shards of Gaussians, by many processes."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from gaussmatch.apps.cli.extract import part_of
from gaussmatch.apps.cli.index import STRICT
from gaussmatch.apps.cli.parser import Parser
from gaussmatch.apps.cli.search import plain
from gaussmatch.device import choose_device
from gaussmatch.models.run import locate
from gaussmatch.search.embedding import EmbeddingManifest, Share, Work, embed, embed_with_ray


def run(argv: Sequence[str]) -> None:
    parser = Parser(
        "embed",
        "Embed a data set or a folder of photos in shards, and continue where it stopped. "
        "Under torchrun (torchrun --nproc-per-node 4 -m gaussmatch embed …) each process takes "
        "its share.",
        examples=[
            "gaussmatch embed runs/mine my-photos --out shards",
            "gaussmatch embed runs/mine train --out shards --engine ray --workers 4",
            "gaussmatch embed runs/mine my-photos --out shards --part 0/4",
        ],
        computes=True,
    )
    parser.add_argument("run", type=locate, help="the run folder of the model, or photos")
    parser.add_argument("source", help="train, dev or test of its data, or a folder of photos")
    parser.add_argument("--out", type=Path, required=True, help="the output folder")
    parser.add_argument(
        "--shard", type=int, default=4096, help="items per shard: what an interruption can lose"
    )
    parser.add_argument("--engine", choices=("torchrun", "ray"), default="torchrun")
    parser.add_argument("--workers", type=int, default=2, help="actors of --engine ray")
    parser.add_argument(
        "--part", type=part_of, help="k/N: only every N-th shard, starting at k = 0"
    )
    parser.add_argument("--strict", action="store_true", help=STRICT)
    options = parser.parse(argv)
    if options.workers < 1:
        parser.error("--workers must be at least 1")
    if options.engine == "ray" and options.part is not None:
        parser.error("--part is for processes started by hand; Ray shares the work itself")

    work = Work(options.run, options.source, options.strict, _device(options))
    model, source = work()
    embedding = work.embedding(source, options.shard)
    part = Share(*options.part) if options.part else Share.of_torchrun()
    if options.engine == "ray":
        del model
        done = embed_with_ray(_everywhere(work), embedding, options.out, options.workers)
    else:
        done = embed(model, source, embedding, options.out, part)
        for id_, reason in source.skipped.items():
            print(f"skipped: {plain(id_)}: {plain(reason)}")
    if part.k == 0 or done:
        _report(embedding, options, done, part)


def _device(options: Namespace) -> str:
    """On a machine with several GPUs each process of torchrun has its own."""
    name = str(choose_device(options.device))
    local = os.environ.get("LOCAL_RANK")
    return f"cuda:{local}" if name == "cuda" and local is not None else name


def _everywhere(work: Work) -> Work:
    """The same work from any current folder."""
    path = Path(work.source)
    source = str(path.resolve()) if path.is_dir() else work.source
    return Work(work.run.resolve(), source, work.strict, work.device)


def _report(embedding: EmbeddingManifest, options: Namespace, done: bool, part: Share) -> None:
    held = ", ".join(f"{held['items']:,} {name}" for name, held in embedding.galleries.items())
    if not done:
        print(f"part {part.k} of {part.of} is done; the other parts are not yet")
        return
    print(f"{options.out}: {held} in {len(embedding.shards())} shards")
    print(f"next: gaussmatch index {options.run} {options.out} --out …")
