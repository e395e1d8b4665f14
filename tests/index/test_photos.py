"""People's photos as they are: date, place and captions of the files, what is skipped, ids."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from gaussmatch.apps.cli import main
from gaussmatch.data.pictures import named, read_picture
from gaussmatch.search import Index, add_photos, update
from gaussmatch.search.where import UnknownFieldError

RATIONAL = TiffImagePlugin.IFDRational
XMP = (
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF><rdf:Description><dc:description><rdf:Alt>'
    '<rdf:li xml:lang="x-default">Sled &amp; dög</rdf:li></rdf:Alt></dc:description>'
    "</rdf:Description></rdf:RDF></x:xmpmeta>"
)


def photo(path: Path, colour: Any = "red", taken: str | None = None, **options: Any) -> Path:
    """A photo with EXIF: DateTimeOriginal, position, description."""
    exif = Image.Exif()
    exif[0x0110] = "Camera"
    if taken is not None:
        exif.get_ifd(0x8769)[0x9003] = taken
    if "at" in options:
        (lat, north), (lon, east) = options.pop("at")
        exif.get_ifd(0x8825).update({1: north, 2: lat, 3: east, 4: lon})
    if "said" in options:
        exif[0x010E] = options.pop("said")
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (40, 30), colour).save(path, exif=exif, **options)
    return path


def photo_metadata(path: Path) -> dict[str, Any]:
    """What the head of a photo's file says, and else its name."""
    return named(path, read_picture(path, pixels=False).said if path.is_file() else {})


def degrees(d: float, m: float, s: float) -> tuple[Any, ...]:
    return tuple(RATIONAL(round(100 * part), 100) for part in (d, m, s))


PARIS = (degrees(48, 51, 30.24), "N"), (degrees(2, 17, 40.2), "E")
RIO = (degrees(22, 57, 7), "S"), (degrees(43, 12, 37.8), "W")


@pytest.mark.parametrize("ending", ["jpg", "png", "webp"])
def test_date_and_place_of_a_photo(tmp_path: Path, ending: str) -> None:
    path = photo(tmp_path / f"1.{ending}", taken="2023:05:17 10:22:31", at=PARIS)
    assert photo_metadata(path) == {
        "taken": "2023-05-17T10:22:31",
        "latitude": pytest.approx(48.8584, abs=1e-5),
        "longitude": pytest.approx(2.2945, abs=1e-5),
        "place": "48.85840, 2.29450",
    }


def test_south_and_west_are_negative(tmp_path: Path) -> None:
    assert photo_metadata(photo(tmp_path / "1.jpg", at=RIO))["place"] == "-22.95194, -43.21050"


@pytest.mark.parametrize(
    "options",
    [
        {"taken": "0000:00:00 00:00:00"},
        {"taken": "yesterday"},
        {"at": ((degrees(99, 0, 0), "N"), (degrees(2, 0, 0), "E"))},
        {"at": ((degrees(0, 0, 0), "N"), (degrees(0, 0, 0), "E"))},
        {"at": (((RATIONAL(1, 0),) * 3, "N"), (degrees(2, 0, 0), "E"))},
        {"said": "OLYMPUS DIGITAL CAMERA"},
        {"said": " \x00 "},
    ],
)
def test_what_makes_no_sense_is_left_out(tmp_path: Path, options: dict[str, Any]) -> None:
    assert photo_metadata(photo(tmp_path / "IMG_20230517_102231.jpg", **options)) == {}


def test_captions_of_exif_xmp_and_names(tmp_path: Path) -> None:
    described = photo(tmp_path / "1.jpg", said="Grüße aus Rom".encode())
    assert photo_metadata(described) == {"caption": "Grüße aus Rom"}
    assert photo_metadata(photo(tmp_path / "2.jpg", said="two dogs", xmp=XMP.encode())) == {
        "caption": "Sled & dög"
    }
    assert photo_metadata(photo(tmp_path / "two_dogs-in snow (3).jpg")) == {
        "caption": "two dogs in snow"
    }
    assert photo_metadata(tmp_path / "gone in the wind.jpg") == {"caption": "gone in the wind"}


def test_the_caption_of_iptc(tmp_path: Path) -> None:
    """A photo as a newsroom writes it: IPTC record 2, data set 120, in a resource of Photoshop."""
    said = b"A dog on a sled"
    record = b"\x1c\x02\x78" + len(said).to_bytes(2, "big") + said
    block = b"8BIM\x04\x04\x00\x00" + len(record).to_bytes(4, "big") + record
    segment = b"Photoshop 3.0\x00" + block + b"\x00" * (len(block) % 2)
    plain = photo(tmp_path / "1.jpg").read_bytes()
    marker = b"\xff\xed" + (len(segment) + 2).to_bytes(2, "big")
    path = tmp_path / "2.jpg"
    path.write_bytes(plain[:2] + marker + segment + plain[2:])
    assert photo_metadata(path) == {"caption": "A dog on a sled"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "my-photos"
    photo(root / "b.jpg", "red", "2022:12:31 23:59:59")
    photo(root / "trip" / "c.jpg", "blue", "2023:05:17 10:22:31", at=PARIS)
    photo(root / "trip" / "d.jpg", "green", "2024:01:01 00:00:00", at=RIO)
    photo(root / "a.jpg", "white")
    return root


@pytest.fixture
def index(tiny_run: Path, tmp_path: Path) -> Index:
    return Index.create(tmp_path / "index", tiny_run)


def found(index: Index, **where: Any) -> set[str]:
    return set(index.search_text(["a star"], 9, where=where)[0].ids)


def test_photos_are_filtered_and_sorted_by_date_and_place(
    index: Index, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    update(index, folder, progress=False)
    assert found(index, taken={"gte": "2023-05"}) == {"trip/c.jpg", "trip/d.jpg"}
    assert found(index, taken={"gte": "2023-05", "lt": "2023-06"}) == {"trip/c.jpg"}
    assert found(index, latitude={"lt": 0}) == {"trip/d.jpg"}
    assert found(index, taken=None) == {"a.jpg"}
    (hits,) = index.search_text(["a star"], 9)
    assert hits.sorted("taken").ids == ["b.jpg", "trip/c.jpg", "trip/d.jpg", "a.jpg"]
    assert hits.sorted("taken", descending=True).ids[0] == "trip/d.jpg"
    with pytest.raises(UnknownFieldError, match="did you mean 'taken'"):
        index.search_text(["a star"], 9, where={"takn": {"gte": "2023"}})
    words = ["search", index.place, "a star", "--where", "taken>=2023", "--sort=-taken"]
    capsys.readouterr()
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert 0 < shown.index("trip/d.jpg") < shown.index("trip/c.jpg")
    assert "b.jpg" not in shown
    assert main(["search", index.place, "a star", "--where", "yeer=2024"]) == 2
    fields = "file, folder, latitude, longitude, place, taken"
    assert f"The fields are {fields}" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:not read as captions")
def test_raw_files_and_videos_are_counted_and_a_foreign_table_is_no_caption(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("1.NEF", "2.nef", "3.CR3", "clip.mov", "notes.txt", ".hidden.mp4"):
        (folder / name).write_bytes(b"x")
    (folder / "e.jpg").write_bytes(b"no picture")
    with (folder / "camera-export.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["serial", "shutter"], ["1", "2"]])
    words = ["index", str(tiny_run), str(folder), "--out", str(tmp_path / "i")]
    assert main(words) == 0
    said = capsys.readouterr()
    assert "4 added" in said.out
    assert "skipped: e.jpg: cannot be decoded as an image" in said.out
    assert "not indexed: 3 RAW (.cr3, .nef): raw data of the sensor; export it as JPEG" in said.out
    assert "not indexed: 1 video (.mov)" in said.out
    assert "not read as captions" in said.err
    for path in folder.rglob("*.jpg"):
        path.unlink()
    assert main(words) == 2
    assert "no photos" in (err := capsys.readouterr().err)
    assert "3 RAW" in err


def test_add_and_update_give_the_same_ids(
    index: Index, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "captions.csv").write_text("image,caption\ntrip/c.jpg,a red star\n")
    update(index, folder, progress=False)
    before = {r.id: r for r in index.records()}
    index.delete(["trip/c.jpg"])
    index.delete(["trip/c.jpg#0"], "captions")
    elsewhere = photo(tmp_path / "other" / "x.jpg")
    (tmp_path / "bad.jpg").write_bytes(b"no picture")
    monkeypatch.chdir(folder / "trip")
    done = add_photos(index, [Path("c.jpg"), elsewhere, tmp_path / "bad.jpg"], progress=False)
    assert (done.added, done.changed, len(done.skipped)) == (2, 0, 1)
    after = {r.id: r for r in index.records()}
    assert after.pop(elsewhere.as_posix()).source is None
    assert after == before
    assert [r.id for r in index.records("captions")] == ["trip/c.jpg#0"]
    with pytest.raises(ValueError, match=r"'trip/c.jpg' is in the index already.*--replace"):
        add_photos(index, [Path("c.jpg")], progress=False)
    assert add_photos(index, [Path("c.jpg")], replace=True, progress=False).changed == 1
    done = update(index, folder, progress=False)
    assert (done.added, done.changed, done.deleted) == (0, 0, 0)
    assert elsewhere.as_posix() in index


def test_one_caption_that_becomes_two_is_a_change(index: Index, folder: Path) -> None:
    table = folder / "captions.csv"
    table.write_text("image,caption\ntrip/c.jpg,a star|a square\n")
    update(index, folder, progress=False)
    table.write_text("image,caption\ntrip/c.jpg,a star\ntrip/c.jpg,a square\n")
    assert update(index, folder, progress=False).changed == 1
    assert index.get("trip/c.jpg").meta["captions"] == ["a star", "a square"]
    assert [r.meta["caption"] for r in index.records("captions")] == ["a star", "a square"]


def test_a_photo_that_vanishes_while_it_is_indexed_is_skipped(
    index: Index, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = type(index.model).encode_images

    def vanishing(self: Any, pictures: Any, *args: Any) -> Any:
        (folder / "trip" / "d.jpg").unlink(missing_ok=True)
        return encode(self, pictures, *args)

    monkeypatch.setattr("gaussmatch.search.sources.AT_ONCE", 1)
    monkeypatch.setattr("gaussmatch.search.sources.DECODERS", 1)
    monkeypatch.setattr("gaussmatch.search.sources.PhotoSource.batch", 1)
    monkeypatch.setattr(type(index.model), "encode_images", vanishing)
    done = update(index, folder, progress=False)
    assert (done.added, list(done.skipped)) == (3, ["trip/d.jpg"])


@pytest.mark.parametrize("ending", ["heic", "avif"])
def test_heic_and_avif_have_date_place_and_pixels(
    index: Index, tmp_path: Path, ending: str
) -> None:
    pytest.importorskip("pillow_heif", reason="needs the extra 'heic'")
    path = tmp_path / "phone" / f"IMG_1.{ending}"
    photo(path, "red", "2023:05:17 10:22:31", at=PARIS, quality=95)
    update(index, path.parent, progress=False)
    record = index.get(path.name)
    assert record.meta["taken"] == "2023-05-17T10:22:31"
    assert record.meta["place"] == "48.85840, 2.29450"
    assert record.thumbnail is not None


def test_threads_change_nothing(index: Index, folder: Path, tiny_run: Path, tmp_path: Path) -> None:
    update(index, folder, progress=False)
    one = Index.create(tmp_path / "one", tiny_run)
    for path in sorted(folder.rglob("*.jpg")):
        add_photos(one, [path], progress=False)
    for record in one.records():
        id_ = Path(record.id).relative_to(folder).as_posix()
        a, b = one.gaussian(record.id), index.gaussian(id_)
        np.testing.assert_allclose(a.mean, b.mean, atol=1e-6)


def test_another_folder_does_not_replace_the_first(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "i"
    assert main(["index", str(tiny_run), str(folder), "--out", str(out)]) == 0
    photo(tmp_path / "other" / "b.jpg", "black")
    assert main(["index", str(tiny_run), str(tmp_path / "other"), "--out", str(out)]) == 2
    assert "holds the photos of" in (said := capsys.readouterr().err)
    assert "gaussmatch index merge" in said
    assert Index.open(out).size("images") == 4


def test_most_photos_gone_are_deleted_only_when_confirmed(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "i"
    assert main(["index", str(tiny_run), str(folder), "--out", str(out)]) == 0
    for name in ("a.jpg", "trip/c.jpg"):
        (folder / name).unlink()
    assert main(["index", "update", str(out)]) == 0  # half of them
    (folder / "b.jpg").unlink()
    photo(folder / "new.jpg")
    (folder / "trip" / "d.jpg").unlink()
    assert main(["index", "update", str(out)]) == 2
    assert "2 of the 2 photos" in (said := capsys.readouterr().err)
    assert "--yes" in said
    assert {r.id for r in Index.open(out).records()} == {"b.jpg", "trip/d.jpg"}
    assert main(["index", "update", str(out), "--yes"]) == 0
    assert {r.id for r in Index.open(out).records()} == {"new.jpg"}


def test_a_merged_index_keeps_the_photos_of_the_other_folder(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = photo(tmp_path / "other" / "x.jpg").parent
    for name, photos in (("a", folder), ("b", other)):
        assert main(["index", str(tiny_run), str(photos), "--out", str(tmp_path / name)]) == 0
    both = str(tmp_path / "both")
    assert main(["index", "merge", both, str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert main(["index", "update", both, str(folder)]) == 2
    assert "does not say where they came from" in capsys.readouterr().err
    assert Index.open(both).size() == 5
    assert main(["index", "update", both, str(folder), "--yes"]) == 0
    assert Index.open(both).size() == 4


def test_a_photo_from_elsewhere_does_not_take_the_place_of_one_of_the_folder(
    index: Index, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update(index, folder, progress=False)
    elsewhere = photo(tmp_path / "other" / "a.jpg", "white")
    monkeypatch.chdir(elsewhere.parent)
    assert add_photos(index, [Path("a.jpg")], progress=False).added == 1
    assert index.size() == 5
    assert elsewhere.as_posix() in index


@pytest.mark.filterwarnings("default")
def test_an_empty_caption_is_named_before_anything_is_encoded(
    tiny_run: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "captions.csv").write_text("image,caption\na.jpg,a star\nb.jpg,\n")
    out = tmp_path / "i"
    assert main(["index", str(tiny_run), str(folder), "--out", str(out)]) == 2
    assert "captions.csv, line 3: the caption of b.jpg is empty" in capsys.readouterr().err
    assert not out.exists()
    (folder / "captions.csv").write_text("image,caption\na.jpg,a star\nlost.jpg,a square\n")
    assert main(["index", str(tiny_run), str(folder), "--out", str(out)]) == 0
    assert "1 of its images are missing, such as lost.jpg" in capsys.readouterr().err


def test_a_photo_that_became_unreadable_counts_as_deleted(index: Index, folder: Path) -> None:
    update(index, folder, progress=False)
    (folder / "a.jpg").write_bytes(b"no picture")
    assert update(index, folder, progress=False).deleted == 1
    assert "a.jpg" not in index


def test_what_cannot_be_indexed_leaves_no_index_behind(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "nan.npy", np.full((3, 4), np.nan, np.float32))
    for what, message in (("empty", "no photos"), ("nan.npy", "nan.npy")):
        out = tmp_path / f"{what}.index"
        assert main(["index", str(tiny_run), str(tmp_path / what), "--out", str(out)]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("nosuch", "nosuch: no such folder of photos, nor a run"),
        ("photos", "photos is the model in the package; name the folder of your photos"),
        ("a.jpg", "a.jpg is a file; name its folder"),
    ],
)
def test_what_is_no_folder_of_photos_is_named(
    what: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "a.jpg")
    with pytest.raises(SystemExit):
        main(["index", what, "--out", "x.index"])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x.index").exists()
