"""All pictures by date, folder, place and name."""

from __future__ import annotations

from gaussmatch.search.catalog import Catalog
from gaussmatch.search.manifest import Record


def made() -> Catalog:
    photos = [
        ("trips/2019 holiday/b.jpg", "2019-07-02T10:00:00", (48.85, 2.29)),
        ("trips/2019 holiday/a.jpg", "2019-07-01T10:00:00", (48.851, 2.291)),
        ("trips/rome/red-car.jpg", "2021-05-01T10:00:00", (41.9, 12.5)),
        ("scan.jpg", None, None),
    ]
    records = []
    for file, taken, place in photos:
        meta = {"file": file, "folder": file.rpartition("/")[0] or "."}
        meta |= {"taken": taken} if taken else {}
        meta |= {"latitude": place[0], "longitude": place[1]} if place else {}  # type: ignore[dict-item]
        records.append(Record(file, meta))
    records.append(Record("x", {"captions": ["A red car in the rain"], "latitude": "no"}))
    return Catalog(records)


def test_the_newest_come_first_and_those_without_a_date_last() -> None:
    catalog = made()
    assert [(m.month, m.count) for m in catalog.months()] == [
        ("2021-05", 1),
        ("2019-07", 2),
        ("", 2),
    ]
    assert catalog.ids[0] == "trips/rome/red-car.jpg"
    assert catalog.taken[3:] == ["", ""]


def test_folders_hold_those_below() -> None:
    catalog = made()
    assert {album.folder: album.count for album in catalog.albums()} == {
        "": 2,
        "trips": 3,
        "trips/2019 holiday": 2,
        "trips/rome": 1,
    }
    rows = catalog.rows("trips/2019 holiday")
    assert [catalog.ids[row][-5:] for row in rows] == ["b.jpg", "a.jpg"]
    assert len(catalog.rows("trip")) == 0


def test_places_near_each_other_are_one_if_there_are_many() -> None:
    catalog = made()
    assert len(catalog.spots(10)) == 3
    (paris, rome) = catalog.spots(2)
    assert (paris.count, rome.count) == (2, 1)
    assert len(catalog.rows(box=(48, 2, 49, 3))) == 2


def test_names_say_which() -> None:
    catalog = made()
    found = catalog.named("2019 holidays")
    assert found.total == 2
    assert [album.folder for album in found.folders] == ["trips/2019 holiday"]
    car = catalog.named("a red car")
    assert [(hit.id, hit.named) for hit in car.hits] == [
        ("trips/rome/red-car.jpg", ["file"]),
        ("x", ["caption"]),
    ]
    assert catalog.named("rome car").total == 1  # in two of its names
    assert catalog.named("the").total == catalog.named("elsewhere").total == 0


def test_an_empty_index() -> None:
    catalog = Catalog([])
    assert (catalog.months(), catalog.albums(), catalog.spots(5)) == ([], [], [])
    assert catalog.named("dog").hits == []
