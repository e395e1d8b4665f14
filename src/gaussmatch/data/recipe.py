"""Which data: the section ``data`` of a recipe, and what the sources that it names are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gaussmatch.checks import not_negative, positive
from gaussmatch.data.check import Report, check_listing
from gaussmatch.data.listing import Listing
from gaussmatch.data.pairs import DataSet


@dataclass(frozen=True)
class DataRecipe:
    """Which data.

    Args:
        name: the data set; ``gaussmatch data where`` lists them and the files each needs.
        root: its folder; scenes needs none.
        also: further data sets to train on, name → folder: their training pairs are added to those
            of ``name``; validation and test use ``name`` alone.
        size: how much of scenes: mini (for tests), tiny (a look), small, or full.
        seed: which scenes are drawn.
        features: what an image is to the encoder: one pooled vector, 36 region vectors, or pixels
            for a network that is trained end to end (model.backbone).
        crop: with pixels of photos: side of the square that the network takes. In training a
            random part of the photo, perhaps mirrored; otherwise its center, after resizing the
            short side to 256/224 of this (see view).
        extracted: the features of photos: a folder made by ``gaussmatch extract``, a .npy file with
            ``{stem}_files.txt`` beside it, or packed ones (.npz of codes, low, step and files or
            ids); a path, or a name inside root. None extracts them once, into the cache.
        view: what an image encoder is given of a photo: its center square, or the whole of it,
            squeezed into a square (the same as +whole in the name of backbone). Frozen and
            fine-tuned stages are given the same.
        backbone: the image encoder that extracts them: a name of timm, open_clip:ARCH/PRETRAINED,
            hf:REPO or onnx:FILE; with existing features, the one that encodes new photos.
        weights: a local file or folder of its weights; none takes the published ones.
        crops: with features of photos: how many random crops of each training photo are extracted
            too; each training step takes one of them (10 stands for the crops that the official
            VSE++ draws anew). 0: training takes the view alone.
        images: with arrays: a file of image embeddings.
        texts: with arrays: a file of text embeddings.
        pairs: with arrays: which go together, a CSV with the columns image, text, perhaps split.
        cxc: with coco: the folder of sits_*.csv, whose judgments become true pairs.
        coco: with visual-genome: the folder of COCO, whose training images are left out.
        dev_images: validate on this many images of dev, the first ones; none for all.
        min_count: a word must occur this often in the training captions to have a vector.
        words: how captions are split into words: plain, or nltk as in the published vocabularies.
    """

    name: str = "scenes"
    root: str | None = None
    also: dict[str, str] = field(default_factory=dict, hash=False)
    size: Literal["mini", "tiny", "small", "full"] = "full"
    seed: int = 0
    features: Literal["pooled", "regions", "pixels"] = "pooled"
    crop: int = 224
    extracted: str | None = None
    view: Literal["center", "whole"] = "center"
    backbone: str = "resnet50"
    weights: str | None = None
    crops: int = 0
    images: str | None = None
    texts: str | None = None
    pairs: str | None = None
    cxc: str | None = None
    coco: str | None = None
    dev_images: int | None = None
    min_count: int = 4
    words: Literal["plain", "nltk"] = "plain"

    def __post_init__(self) -> None:
        positive("data", self, "crop", "dev_images")
        not_negative("data", self, "crops")
        if self.name == "precomputed" and self.features == "pixels":
            raise ValueError("data.features is pixels, but precomputed holds features only")


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
            place = "" if root.is_absolute() else " in the current folder"
            raise FileNotFoundError(
                f"{root}: no such folder of {self.name}{place}; pass it as --data.root FOLDER"
            )
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
