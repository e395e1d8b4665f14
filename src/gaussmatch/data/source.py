"""What a data source is: everything that the rest of the program knows about one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gaussmatch.data.check import Report, check_listing
from gaussmatch.data.listing import Listing
from gaussmatch.data.pairs import DataSet
from gaussmatch.data.recipe import DataRecipe


@dataclass(frozen=True)
class Source:
    """One entry of ``gaussmatch.data.SOURCES``.

    A source of photos has ``read``; one that makes its splits in another way has ``load``; files
    that only add to another source (CxC) have neither.

    Args:
        name: ``data.name`` of a recipe.
        where: which files it needs and who publishes them, for ``gaussmatch data where``.
        signs: patterns of the files by which its folder is recognized.
        fields: fields of ``DataRecipe`` that only some sources read, and this one does.
        read: (recipe, folder) → photos, captions and splits, before any picture is opened.
        load: recipe → the data set.
        place: recipe → the folder to read; ``data.root`` if not given.
        check: folder → what is there and what is wrong with it; that of photos if not given.
    """

    name: str
    where: str = ""
    signs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    read: Callable[[DataRecipe, Path], Listing] | None = None
    load: Callable[[DataRecipe], DataSet] | None = None
    check: Callable[[Path], Report] | None = None
    place: Callable[[DataRecipe], Path] | None = None

    def root(self, recipe: DataRecipe) -> Path:
        """The folder that its files lie in."""
        return data_root(recipe) if self.place is None else self.place(recipe)

    def listing(self, recipe: DataRecipe, root: Path) -> Listing:
        """What the files in ``root`` say; only sources of photos have it."""
        if self.read is None:
            raise ValueError(f"{self.name} has no photos; choose a data set that has")
        if not root.is_dir():
            raise FileNotFoundError(f"{root}: no such folder of {self.name} (data.root)")
        return self.read(recipe, root)

    def report(self, root: Path) -> Report:
        """What is in a folder of this source, and what is wrong with it."""
        if self.check is not None:
            return self.check(root)
        recipe = DataRecipe(name=self.name, root=str(root))
        return check_listing(self.listing(recipe, self.root(recipe)))


def data_root(recipe: DataRecipe) -> Path:
    """The folder that the user named."""
    if recipe.root is None:
        raise ValueError(
            f"data.root is not set: give the folder of {recipe.name} as --data.root FOLDER "
            f"('gaussmatch data where {recipe.name}' lists what it must hold)"
        )
    return Path(recipe.root).expanduser()
