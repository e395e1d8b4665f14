"""Files that somebody else made, or damaged on purpose: what gets through?

    python benchmarks/hostile_files.py [--tries 200] [--seed 0] [--only NAME …]

Prints a table of tries and failures for each class of attack. A try fails if a file outside its
target is written, a foreign file changes, a hostile file is believed, or an error is anything but
one clear line (``ValueError`` or ``OSError``, as the command line shows them). Nothing is
downloaded; everything happens in a temporary folder, at most ``--tries`` times a class.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import shutil
import struct
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gaussmatch.apps.cli import main as gaussmatch
from gaussmatch.core.gaussian import Gaussian
from gaussmatch.data.embeddings import open_embeddings
from gaussmatch.files import cache_root, made_once, read_csv, sha256, write_csv
from gaussmatch.models.run import FORMAT, SHIPPED, load
from gaussmatch.search import Index, IndexSettings, Record, backup, merge
from gaussmatch.search.embedding import EmbeddingManifest, ShardContent
from gaussmatch.search.manifest import _digest
from gaussmatch.search.trust import Calibration

Dice = random.Random
Attack = Callable[[Path, Dice], bool]
"""One try in an empty folder → whether it failed to do harm."""

NAMES = (
    "../../.bashrc", "../x", "..", ".", "", "/etc/passwd", "a/b", "a/../../x", "a\\b", "a\0b",
    ".lock", "~/x", "x" * 300, "\u2024./x", "x\n", "a b",
)  # fmt: skip
DEEP = "[" * 100_000
WRONG = (
    "",
    "{",
    "[]",
    "3",
    "null",
    '"x"',
    DEEP,
    '{"format": 5}',
    '{"format": []}',
    "{}",
    "\ufeff{}",
)


def refused(work: Callable[[], object]) -> bool:
    """Whether something ends in one clear line."""
    try:
        work()
    except (ValueError, OSError) as error:
        return "\n" not in str(error).split(":\n")[0]
    return False


def command(*words: object) -> int:
    """The exit code of a command line; a raw traceback goes through."""
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        try:
            return gaussmatch([str(word) for word in words])
        except SystemExit as end:
            return int(end.code or 0)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def made(path: Path) -> Index:
    index = Index.create(path, similarity="kl", settings=IndexSettings("hnsw", flat_below=20))
    index.add(
        Gaussian(torch.randn(30, 4), torch.zeros(30, 4)), [Record(f"i{n}") for n in range(30)]
    )
    index.delete(["i3"])
    index.set_calibration(Calibration(about={"a": 1}))
    return index


def edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a manifest as somebody would who computes its digest again."""
    content = json.loads(path.read_text())
    content.pop("sha256", None)
    change(content)
    path.write_text(json.dumps({**content, "sha256": _digest(content)}))


# ---- the attacks ----


def names_in_an_index(folder: Path, dice: Dice) -> bool:
    """A name in the manifest of a backup that leaves its folder: opened, restored, merged."""
    index, name = made(folder / "in" / "b"), dice.choice(NAMES)
    file = {"size": 4, "sha256": "0" * 64}

    def change(m: dict[str, Any]) -> None:
        part = m["galleries"]["images"][0]
        where = dice.choice(("run", "files", "segment", "in segment", "deleted"))
        if where == "run":
            m["run"][str(name)] = "0" * 64
        elif where == "files":
            m["files"][str(name)] = file
        elif where == "in segment":
            part["files"][str(name)] = file
        else:
            part["name" if where == "segment" else "deleted"] = name or "/"

    edit(folder / "in" / "b" / "manifest.json", change)
    (folder / ".bashrc").write_text("mine")
    before = everything(folder)
    work = dice.choice((
        lambda: Index.open(index.place),
        lambda: backup(folder / "in" / "new", index.place),
        lambda: merge(folder / "in" / "new", [index.place], progress=False),
    ))  # fmt: skip
    return refused(work) and everything(folder) == before


def names_in_a_run(folder: Path, dice: Dice) -> bool:
    shutil.copytree(SHIPPED / "photos", folder / "run")
    names = {path.name: [sha256(path)] for path in (folder / "run").iterdir() if path.is_file()}
    names[dice.choice(NAMES)] = ["0" * 64]
    (folder / "run" / "run.json").write_text(json.dumps({"format": FORMAT, "files": names}))
    return refused(lambda: load(folder / "run"))


def names_in_a_cache(folder: Path, dice: Dice) -> bool:
    """A list that vouches for a file elsewhere is not believed."""
    made_once(folder / "c", lambda work: None)
    (folder / "secret").touch()
    mark = [0, sha256(folder / "secret")]
    listed = {dice.choice(("../secret", str(folder / "secret"))): mark}
    (folder / "c" / "files.json").write_text(json.dumps(listed))
    return (made_once(folder / "c", lambda work: (work / "new").touch()) / "new").is_file()


VERBS = (
    ("audit", "scenes", "--out"),
    ("evaluate", "photos", "--out"),
    ("export", "photos", "--onnx"),
    ("reproduce", "coco", "--data", "scenes", "--fast", "--out"),
    ("adapt", "--images", "i", "--texts", "t", "--pairs", "p", "--out"),
    ("train", "scenes/vsepp-kl", "--out"),
    ("import", "model.pth", "--out"),
    ("compare", "scenes/vsepp-kl", "--out"),
    ("tune", "flickr8k", "--out"),
    ("demo", "--out"),
    ("probe", "photos", "--plots"),
)
FOREIGN = (
    "pictures/1.jpg", "audit.csv", "evaluation-test.json", "images.onnx", "model.safetensors",
    "report.html", "notes.txt", ".git/HEAD", "run/recipe.yaml", "segments/tax.txt", "x.lock",
)  # fmt: skip


def foreign_out(folder: Path, dice: Dice) -> bool:
    """A verb that writes a folder, given one with somebody's file in it."""
    verb, out = dice.choice(VERBS), folder / "out"
    mine = (out / "photos" if verb[0] == "evaluate" else out) / dice.choice(FOREIGN)
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    code = command(*verb, out)
    return code == 2 and everything(folder) == {str(mine): b"mine"}


def source_folder(folder: Path, dice: Dice) -> bool:
    """An index that was copied, restored, merged or edited says where its photos are."""
    os.environ["GAUSSMATCH_CACHE"] = str(folder / "cache")
    index = made(folder / "i")
    index.note_source({"folder": str(folder)}, here=True)
    if index.own_folder != folder:
        return False
    how = dice.choice(("copied", "restored", "merged", "edited", "moved"))
    if how == "edited":
        edit(folder / "i" / "manifest.json", lambda m: m["source"].update(folder="/"))
        return Index.open(folder / "i").own_folder is None
    if how == "copied":
        shutil.copytree(folder / "i", folder / "new")
    elif how == "moved":
        (folder / "i").rename(folder / "new")
    elif how == "restored":
        backup(folder / "new", index.place)
    else:
        merge(folder / "new", [index.place], progress=False)
    return Index.open(folder / "new").own_folder is None


def tensors(path: Path, dice: Dice) -> None:
    """A safetensors file whose header lies."""
    about: dict[str, Any] = {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}
    about |= dice.choice((
        {"data_offsets": [-64, 0]}, {"data_offsets": [64, 0]}, {"data_offsets": [0, 10**12]},
        {"data_offsets": [0]}, {"data_offsets": "x"}, {"shape": [-4, -4]}, {"shape": [2**40] * 2},
        {"shape": [0, 4]}, {"shape": 4}, {"dtype": "F31"}, {"dtype": None}, {"shape": [5, 4]},
    ))  # fmt: skip
    head = dice.choice((json.dumps({"a": about}), json.dumps([about]), DEEP, "", "null")).encode()
    size = dice.choice((len(head), len(head), len(head), 0, 2**63, len(head) + 9))
    path.write_bytes(struct.pack("<Q", size) + head + bytes(dice.choice((0, 64))))


def lying_tensors(folder: Path, dice: Dice) -> bool:
    tensors(folder / "x.safetensors", dice)
    readers: tuple[Callable[[Path], object], ...] = (
        Gaussian.load,
        ShardContent.load,
        lambda path: open_embeddings(path).check(),
    )
    return refused(lambda: dice.choice(readers)(folder / "x.safetensors"))


def wrong_json(folder: Path, dice: Dice) -> bool:
    """A JSON file of another shape than expected."""
    text = dice.choice(WRONG)
    name, read = dice.choice((
        ("manifest.json", lambda: Index.open(folder)),
        ("embedding.json", lambda: EmbeddingManifest.load(folder).shards()),
        ("calibration.json", lambda: Calibration.load(folder / "calibration.json")),
    ))  # fmt: skip
    (folder / name).write_text(text, encoding="utf-8")
    return refused(read)


def foreign_cache(folder: Path, dice: Dice) -> bool:
    """A cache that others can write to, and one that is made."""
    os.environ["GAUSSMATCH_CACHE"] = str(folder / "cache")
    if cache_root().stat().st_mode & 0o777 != 0o700:
        return False
    (folder / "cache").chmod(dice.choice((0o777, 0o770, 0o722, 0o1777)))
    return refused(cache_root)


def poisoned_cache(folder: Path, dice: Dice) -> bool:
    """An entry that was changed is made again."""
    made_once(folder / "c", lambda work: (work / "a").write_bytes(b"whole" * 99) and None)
    content = bytearray((folder / "c" / "a").read_bytes())
    content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    (folder / "c" / "a").write_bytes(content)
    again = made_once(folder / "c", lambda work: (work / "a").write_bytes(b"whole" * 99) and None)
    return (again / "a").read_bytes() == b"whole" * 99


def formulas(folder: Path, dice: Dice) -> bool:
    text = dice.choice("=+-@\t\r'") + "".join(dice.choices("=cmd|'!A1,\"\n\r", k=8))
    write_csv(folder / "t.csv", ["text"], [{"text": text}])
    cell = (folder / "t.csv").read_bytes().split(b"\r\n", 1)[1].lstrip(b'"')
    return cell[:1] == b"'" and read_csv(folder / "t.csv", ["text"]) == [{"text": text}]


def pointing(file: Path, location: str) -> None:
    """An ONNX file whose weights, 4 × 4, are in another file."""
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=1, dims=[4, 4], data_location=TensorProto.EXTERNAL)
    weights.external_data.add(key="location", value=location)
    ends = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    graph.initializer.append(weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file.write_bytes(model.SerializeToString())


def onnx_elsewhere(folder: Path, dice: Dice) -> bool:
    """An ONNX file whose weights are in another file, also in one of the working directory."""
    from gaussmatch.models.encoders.onnx import Network

    np.eye(4, dtype=np.float32).tofile(folder / "secret.bin")
    (folder / "m").mkdir()
    shutil.copy(folder / "secret.bin", folder / "m" / "in.bin")
    (folder / "m" / "link.bin").symlink_to(folder / "secret.bin")
    places = ("in.bin", "link.bin", "../secret.bin", str(folder / "secret.bin"))
    pointing(folder / "m" / "a.onnx", dice.choice(places))
    with contextlib.chdir(folder / dice.choice(("m", "."))):
        return refused(lambda: Network(folder / "m" / "a.onnx"))


def bad_checkpoint(folder: Path, dice: Dice) -> bool:
    """Official checkpoints that are damaged, or hold code."""
    path = folder / "model_best.pth.tar"

    class Code:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {folder / 'executed'}",)

    torch.save({"model": Code() if dice.random() < 0.5 else [{}], "opt": 3}, path)
    content = bytearray(path.read_bytes())
    for _ in range(dice.choice((0, 1, 8))):
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
    path.write_bytes(content[: dice.choice((len(content), len(content) // 2, 0))])
    code = command("import", path, "--out", folder / "out")
    return code == 2 and not (folder / "executed").exists() and not (folder / "out").exists()


def read_only(folder: Path, dice: Dice) -> bool:
    """Another user searches an index that is not theirs, and cannot change it."""
    if os.geteuid() != 0:
        return True  # only root can become somebody else
    index = made(folder / "i")
    os.chmod(folder, 0o755)
    os.chmod(folder.parent, 0o755)
    child = os.fork()
    if child == 0:
        os.setuid(65534)
        good = False
        with contextlib.suppress(BaseException):
            opened = Index.open(index.place, verify=True)
            opened.search(opened.gaussian("i0"), 3)
            good = refused(lambda: opened.delete(["i0"]))
        os._exit(0 if good else 1)
    return os.waitpid(child, 0)[1] == 0


ATTACKS: dict[str, Attack] = {
    f.__name__.replace("_", " "): f
    for f in (
        names_in_an_index, names_in_a_run, names_in_a_cache, foreign_out, source_folder,
        lying_tensors, wrong_json, foreign_cache, poisoned_cache, formulas, onnx_elsewhere,
        bad_checkpoint, read_only,
    )
}  # fmt: skip


def attacked(attack: Attack, tries: int, seed: int) -> Iterator[str]:
    """What went wrong in each try that failed."""
    for number in range(tries):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                held = attack(Path(folder).resolve(), Dice(f"{seed} {number}"))
            except Exception as error:  # a raw traceback
                yield f"try {number}: {type(error).__name__}: {error}"[:200]
            else:
                if not held:
                    yield f"try {number}: got through"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=list(ATTACKS))
    options = parser.parse_args()
    os.environ["GAUSSMATCH_CACHE"] = os.path.join(tempfile.mkdtemp(), "cache")
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # that a cache is made again
    failed = 0
    print("| attack | tries | failures |\n|---|---:|---:|")
    for name in options.only:
        found = list(attacked(ATTACKS[name], options.tries, options.seed))
        failed += len(found)
        print(f"| {name} | {options.tries} | {len(found)} |", flush=True)
        for line in found[:5]:
            print(f"  {line}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
