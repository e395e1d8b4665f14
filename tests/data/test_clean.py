"""Decisions become a cleaned copy, in every format; the original is not touched."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from data.files import flickr8k, photo, write_json

from gaussmatch.apps.cli import main
from gaussmatch.data import SOURCES, exchange, recognize
from gaussmatch.data.clean import DECIDED, Decision, plan, read_decisions
from gaussmatch.data.listing import Listing
from gaussmatch.data.recipe import DataRecipe
from gaussmatch.files import sha256
from gaussmatch.search.trust.audit_report import picture_of

PHOTOS = [f"{i}.jpg" for i in range(6)]


def listing_of(root: Path) -> Listing:
    source = recognize(root)
    recipe = DataRecipe(name=source.name, root=str(root))
    return source.listing(recipe, source.root(recipe))


def said(root: Path) -> dict[str, list[str]]:
    photos = listing_of(root).photos
    return {p.path.name: [c.text for c in p.captions] for p in photos}


def decide(file: Path, *rows: dict[str, str]) -> Path:
    columns = ("issue", "image", "caption", "text", "other_caption", "decision", "fixed")
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, columns)
        writer.writeheader()
        writer.writerows(rows)
    return file


def apply(root: Path, decisions: Path, *more: str) -> Path:
    clean = root.parent / "clean"
    words = ["audit", "apply", str(root), str(decisions), "--out", str(clean), "--yes", *more]
    assert main(words) == 0
    return clean


def state(root: Path) -> dict[str, str]:
    return {str(p): sha256(p) for p in sorted(root.rglob("*")) if p.is_file()}


def with_photos(root: Path, place: str = "") -> Path:
    for i, name in enumerate(PHOTOS):
        photo(root / place / name, i)
    return root


def as_csv(root: Path) -> Path:
    rows = ["file;caption;split;by"] + [
        f'{n};"{n} says\n{k}";{("train", "dev", "test")[i % 3]};me'
        for i, n in enumerate(PHOTOS)
        for k in range(2)
    ]
    with_photos(root, "images")
    (root / "captions.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return root


def as_jsonl(root: Path) -> Path:
    lines = [{"image": n, "captions": [f"{n} says 0", f"{n} says 1"], "by": 7} for n in PHOTOS]
    with_photos(root)
    (root / "all.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return root


def as_parquet(root: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [(n, f"{n} says {k}", 7) for n in PHOTOS for k in range(2)]
    with_photos(root)
    columns = dict(zip(("image", "caption", "by"), map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(pa.table(columns), root / "captions.parquet")
    return root


def as_karpathy(root: Path) -> Path:
    with_photos(root, "images")
    images = [
        {
            "filename": n,
            "split": ("train", "val", "test")[i % 3],
            "sentids": [2 * i, 2 * i + 1],
            "sentences": [{"raw": f"{n} says {k}", "sentid": 2 * i + k} for k in range(2)],
        }
        for i, n in enumerate(PHOTOS)
    ]
    write_json(root / "dataset_flickr30k.json", {"dataset": "flickr30k", "images": images})
    return root


def as_coco(root: Path) -> Path:
    with_photos(root, "train2017")
    images = [{"id": i, "file_name": n} for i, n in enumerate(PHOTOS)]
    captions = [
        {"id": 2 * i + k, "image_id": i, "caption": f"{n} says {k}"}
        for i, n in enumerate(PHOTOS)
        for k in range(2)
    ]
    place = root / "annotations"
    write_json(place / "captions_train2017.json", {"images": images, "annotations": captions})
    things = {"categories": [{"id": 1, "name": "dog"}], "images": images}
    boxes = [{"image_id": i, "category_id": 1, "bbox": [0, 0, 9, 9]} for i in range(6)]
    write_json(place / "instances_train2017.json", {**things, "annotations": boxes})
    for i, split in enumerate(("train", "dev", "test")):
        np.save(place / f"coco_{split}_ids.npy", np.arange(4 * i, 4 * i + 4))
    return root


def as_datasets(root: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    with_photos(root.parent / "source")
    rows = {
        "image": [str(root.parent / "source" / n) for n in PHOTOS],
        "caption": [[f"{n} says 0", f"{n} says 1"] for n in PHOTOS],
    }
    features = {"image": datasets.Image(), "caption": datasets.Sequence(datasets.Value("string"))}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    made.save_to_disk(str(root))
    return root


MAKERS = [as_csv, as_jsonl, as_parquet, as_karpathy, as_coco, as_datasets]


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__[3:])
def test_every_format_is_cleaned(
    make: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    root = make(tmp_path / "data")
    splits = listing_of(root).splits
    photos = [p for name in ("dev", "test", "train") for p in splits[name]]  # 4 is of train
    before = state(root)
    names = [p.path.name for p in photos]
    ids = [[c.id for c in p.captions] for p in photos]
    texts = [[c.text for c in p.captions] for p in photos]
    assert all(c.place for p in photos for c in p.captions)
    rows = [
        {"image": photos[0].id, "caption": ids[0][0], "text": texts[0][0], "decision": "drop"},
        {"image": photos[1].id, "caption": ids[1][1], "decision": "fix", "fixed": "  a new one "},
        {"image": photos[2].id, "caption": ids[2][0], "decision": "swap",
         "other_caption": ids[3][1]},
        {"image": photos[3].id, "caption": ids[3][1], "decision": "SWAP",
         "other_caption": ids[2][0]},
        {"image": photos[4].id, "decision": "drop"},
        {"image": photos[5].id, "caption": ids[5][0], "decision": "accept", "issue": "vague",
         "text": texts[5][0]},
        {"image": photos[5].id, "caption": ids[5][1], "decision": ""},
    ]  # fmt: skip
    clean = apply(root, decide(tmp_path / "decisions.csv", *rows))
    expected = {
        names[0]: [texts[0][1]],
        names[1]: [texts[1][0], "a new one"],
        names[2]: [texts[3][1], texts[2][1]],
        names[3]: [texts[3][0], texts[2][0]],
        names[5]: texts[5],
    }
    after = said(clean)
    assert sorted(after.values()) == sorted(expected.values())
    if make is not as_datasets:  # which numbers its photos by row
        assert after == expected
        listing_of(clean).check_files()
    assert state(root) == before
    known = read_decisions(clean / DECIDED)
    assert {(d.issue, d.text) for d in known} == {
        ("vague", texts[5][0]), ("", "a new one"), ("", texts[3][1]), ("", texts[2][0]),
    }  # fmt: skip


def test_other_columns_of_a_table_stay(tmp_path: Path) -> None:
    root = as_csv(tmp_path / "data")
    clean = apply(root, decide(tmp_path / "d.csv", {"image": "0.jpg", "decision": "drop"}))
    lines = (clean / "captions.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "file;caption;split;by"
    assert lines[1:3] == ['1.jpg;"1.jpg says', '0";dev;me']
    assert not (clean / "images" / "0.jpg").exists()


def test_flickr8k_is_cleaned_with_its_lists_and_judgments(tmp_path: Path) -> None:
    root = flickr8k(tmp_path / "data")
    fix = {"image": "8.jpg", "caption": "8.jpg#1", "decision": "fix", "fixed": "A cat ."}
    rows = [{"image": "0.jpg", "decision": "drop"}, fix]
    clean = apply(root, decide(tmp_path / "d.csv", *rows), "--link")
    assert said(clean)["8.jpg"] == ["A dog number 8 runs , the 0 .", "A cat ."]
    assert "0.jpg" not in said(clean)
    assert (clean / "images" / "1.jpg").is_symlink()
    assert "8.jpg#1" not in (clean / "CrowdFlowerAnnotations.txt").read_text()
    listing_of(clean).check_files()


def test_what_changes_is_shown_and_nothing_written_without_consent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, clean = as_csv(tmp_path / "data"), tmp_path / "clean"
    fix = {"image": "1.jpg", "caption": "1.jpg#0", "decision": "fix", "fixed": "a dog"}
    decisions = decide(tmp_path / "d.csv", fix)
    for more in ([], ["--dry-run"], ["--dry-run", "--yes"]):
        words = ["audit", "apply", str(root), str(decisions), "--out", str(clean), *more]
        assert main(words) == 0
        printed = capsys.readouterr().out
        assert "1.jpg (dev), captions.csv, line 6\n- 1.jpg says 0\n+ a dog" in printed
        assert "nothing was written" in printed
        assert not clean.exists()
    photo(clean / "mine.jpg")
    assert main(["audit", "apply", str(root), str(decisions), "--out", str(clean), "--yes"]) == 2
    assert [p.name for p in clean.iterdir()] == ["mine.jpg"]
    inside = str(root / "clean")
    assert main(["audit", "apply", str(root), str(decisions), "--out", inside, "--yes"]) == 2
    assert "lies inside" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"image": "9.jpg", "decision": "drop"}], r"line 2: no photo '9\.jpg'"),
        ([{"image": "1.jpg", "caption": "1.jpg#7", "decision": "drop"}], "no caption"),
        ([{"image": "1.jpg", "caption": "1.jpg#0", "text": "other", "decision": "drop"}],
         "now says '1.jpg says 0', not 'other'.*audit it again"),
        ([{"image": "1.jpg", "decision": "remove"}], "no decision 'remove'; choose from accept"),
        ([{"image": "1.jpg", "caption": "1.jpg#0", "decision": "fix"}], "needs the new caption"),
        ([{"image": "1.jpg", "caption": "1.jpg#0", "decision": "swap"}], "other_caption"),
        ([{"image": "1.jpg", "decision": "fix", "fixed": "x"}], "needs a caption"),
        ([{"image": "1.jpg", "caption": "1.jpg#0", "decision": "fix", "fixed": "x"},
          {"image": "1.jpg", "caption": "1.jpg#0", "decision": "drop"}],
         r"line 3: .*line 2 decides otherwise about 1\.jpg#0"),
        ([{"image": n, "decision": "drop"} for n in ("1.jpg", "4.jpg")], "left of dev"),
    ],
)  # fmt: skip
def test_wrong_decisions_are_refused_and_named(
    tmp_path: Path, rows: list[dict[str, str]], message: str
) -> None:
    root = as_csv(tmp_path / "data")
    with pytest.raises(ValueError, match=message):
        plan(listing_of(root), read_decisions(decide(tmp_path / "d.csv", *rows)))


def test_a_photo_goes_with_its_last_caption(tmp_path: Path) -> None:
    root = as_csv(tmp_path / "data")
    made = plan(listing_of(root), [Decision("1.jpg", "drop", caption=f"1.jpg#{k}") for k in (0, 1)])
    assert made.photos == {"1.jpg"}
    assert "1.jpg (dev): the photo is dropped" in made.diff


FINDING = {
    "issue": "misfit", "severity": "0.9", "image": "1.jpg", "caption": "1.jpg#0",
    "text": "1.jpg says 0", "other": "", "other_caption": "", "other_text": "", "reason": "why",
    "proposal": "drop", "file": "images/1.jpg", "picture": 7,
}  # fmt: skip


def test_label_studio_there_and_back(tmp_path: Path) -> None:
    folder = partial(picture_of, tmp_path)
    assert exchange.label_studio([FINDING], folder)[0]["data"]["photo"] == "images/1.jpg"
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "7.jpg").write_bytes(b"picture")
    (task,) = exchange.label_studio([FINDING], folder)
    assert task["data"]["photo"] == "data:image/jpeg;base64,cGljdHVyZQ=="  # it shows no files
    (proposed,) = task["predictions"][0]["result"]
    unsure = {**FINDING, "severity": "3.2", "proposal": ""}
    assert exchange.label_studio([unsure], folder)[0]["predictions"] == []
    sure = exchange.label_studio([{**FINDING, "severity": "3.2"}], folder)[0]
    assert sure["predictions"][0]["score"] == 1.0  # Label Studio refuses more
    for name in (proposed["from_name"], proposed["to_name"]):
        assert f'name="{name}"' in exchange.LABELING
    text = {"from_name": "fixed", "to_name": "photo", "type": "textarea",
            "value": {"text": ["a dog"]}}  # fmt: skip
    chosen = exchange._chosen("fix")
    cancelled = {"was_cancelled": True, "result": [proposed]}
    for result in ([chosen, text], [text]):  # a new caption alone is a fix
        done = {**task, "annotations": [{"was_cancelled": False, "result": result}, cancelled]}
        (made,) = read_decisions(write_json(tmp_path / "export.json", [done]))
        assert (made.decision, made.fixed, made.caption) == ("fix", "a dog", "1.jpg#0")
    assert read_decisions(write_json(tmp_path / "export.json", [task])) == []
    flat = {
        **task["data"],
        "id": 1,
        "annotator": 2,
        "decision": "drop",
        "lead_time": 3.1,
    }  # JSON-MIN
    (made,) = read_decisions(write_json(tmp_path / "export.json", [flat]))
    assert (made.decision, made.image, made.caption) == ("drop", "1.jpg", "1.jpg#0")


def test_fiftyone_there_and_back(tmp_path: Path) -> None:
    made = exchange.fiftyone([FINDING, FINDING, FINDING], "audit")
    first, second, _ = made["samples"]
    assert set(first) == set(made["sample_fields"])
    assert Path(first["filepath"]).is_absolute()
    first["tags"], second["decision"], second["fixed"] = ["seen", "drop"], "fix", "a dog"
    found = read_decisions(write_json(tmp_path / "samples.json", made))
    assert [(d.decision, d.fixed) for d in found] == [("drop", ""), ("fix", "a dog")]
    with pytest.raises(ValueError, match="neither decisions nor an export"):
        read_decisions(write_json(tmp_path / "other.json", {"a": 1}))


def test_every_source_of_photos_can_be_cleaned_or_says_so() -> None:
    from gaussmatch.data.clean import WRITERS

    assert set(WRITERS) == {n for n, s in SOURCES.items() if s.read} - {"visual-genome"}


HEADER, ROWS = (
    "id,Image,Caption,split,note",
    [
        '1,0.jpg,"a ""red"" dog, running",train,"x"',
        "2,0.jpg,plain words,train,",
        '3,1.jpg,"quoted words",train,"é"',
        "",
        "4,2.jpg,three, dev ,'",
        '5,3.jpg,four,test,"two\nlines"',
        "6,4.jpg,five,train,last",
    ],
)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_only_the_captions_that_change_are_written_anew(
    tmp_path: Path, ending: str, mark: str
) -> None:
    """Line endings, BOM, quotes, order of columns, other columns and empty lines stay."""
    root = with_photos(tmp_path / "data")
    before = mark + ending.join([HEADER, *ROWS])  # no ending after the last line
    (root / "captions.csv").write_bytes(before.encode())
    fix = {"decision": "fix", "fixed": 'a "new", one'}
    swap = {"decision": "swap", "other_caption": "3.jpg#0"}
    rows = [
        {"image": "0.jpg", "caption": "0.jpg#1", **fix},
        {"image": "1.jpg", "caption": "1.jpg#0", **swap},
        {"image": "0.jpg", "caption": "0.jpg#0", "decision": "accept"},
    ]
    clean = apply(root, decide(tmp_path / "d.csv", *rows))
    after = before.replace("plain words", '"a ""new"", one"')
    after = after.replace('"quoted words"', '"four"').replace(",four,", ",quoted words,")
    assert (clean / "captions.csv").read_bytes() == after.encode()
    assert said(clean)["0.jpg"] == ['a "red" dog, running', 'a "new", one']


def test_lines_of_json_and_of_tokens_keep_their_endings(tmp_path: Path) -> None:
    root = with_photos(tmp_path / "data")
    lines = [f'{{"by": 7,  "image": "{n}", "captions": ["one {n}", "two"]}}' for n in PHOTOS]
    (root / "captions.jsonl").write_bytes("\r\n".join(lines).encode())
    drop = {"image": "1.jpg", "caption": "1.jpg#1", "decision": "drop"}
    clean = apply(root, decide(tmp_path / "d.csv", drop))
    lines[1] = '{"by": 7, "image": "1.jpg", "captions": ["one 1.jpg"]}'
    assert (clean / "captions.jsonl").read_bytes() == "\r\n".join(lines).encode()
    root = flickr8k(tmp_path / "flickr" / "data")
    path = root / "Flickr8k.token.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    drop = {"image": "8.jpg", "caption": "8.jpg#1", "decision": "drop"}
    clean = apply(root, decide(tmp_path / "f.csv", drop))
    kept = [line for line in path.read_bytes().splitlines(True) if b"8.jpg#1\t" not in line]
    assert (clean / path.name).read_bytes() == b"".join(kept)
