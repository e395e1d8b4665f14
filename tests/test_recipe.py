"""Recipes: typed, complete, and strict."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gaussmatch.models.recipe import (
    Recipe,
    all_recipes,
    changed,
    load_recipe,
    parse_overrides,
    typed,
)
from gaussmatch.models.recipe.load import identity


@pytest.mark.parametrize("path", all_recipes(), ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_every_recipe_is_valid_and_round_trips(path: Path, tmp_path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.title
    recipe.save(tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_there_are_recipes_with_titles_of_their_own() -> None:
    titles = [load_recipe(path).title for path in all_recipes()]
    assert len(titles) >= 5
    assert len(set(titles)) == len(titles)


def test_defaults_are_the_papers() -> None:
    recipe = Recipe()
    t, loss, model = recipe.training, recipe.loss, recipe.model
    assert (t.learning_rate, t.decay_epoch, t.decay) == (2e-4, 15, 0.1)
    assert (t.epochs, t.batch_size, t.clip) == (30, 128, 2.0)
    assert (loss.margin, loss.mining) == (0.2, "hardest")
    assert (model.dim, model.word_dim) == (1024, 300)


def test_any_field_from_the_command_line() -> None:
    words = ["--training.epochs", "3", "--data.size=tiny", "--model.variance_range", "[0.1, 3]"]
    words += ["--data.root", "5", "--loss.learn_scale=false", "--data.also.flickr8k", "y"]
    fields = parse_overrides(words)
    assert fields == {
        "training.epochs": 3,
        "data.size": "tiny",
        "model.variance_range": [0.1, 3.0],
        "data.root": "5",
        "loss.learn_scale": False,
        "data.also": {"flickr8k": "y"},
    }
    assert parse_overrides([w for word in typed(fields) for w in shlex.split(word)]) == fields
    recipe = load_recipe("scenes/vsepp", {**fields, "data.root": Path("photos")})
    assert (recipe.training.epochs, recipe.data.size) == (3, "tiny")
    assert (recipe.data.root, recipe.model.variance_range) == ("photos", (0.1, 3.0))
    assert changed(Recipe(), fields).data == replace(
        Recipe().data, size="tiny", root="5", also={"flickr8k": "y"}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traning: {}", "unknown key 'traning'; did you mean 'training'"),
        ("model: {dimm: 3}", "unknown key 'model.dimm'; did you mean 'model.dim'"),
        ("model: {dim: many}", "model.dim"),
        ("model: 3", "'model' must hold fields"),
        ("- a list", "must be a mapping"),
        ("", "must be a mapping"),
        ("a: [", "not valid YAML"),
        ("training: {epochs: 0}", "training.epochs must be positive"),
        ("training: {batch_size: 1}", "batch_size must be at least 2"),
        ("loss: {mining: easiest}", "loss.mining"),
        ("model: {probabilistic: true}", "a point model takes"),
        ("model: {similarity: wassertein}", "did you mean .wasserstein.\\?"),
        ("model: {similarity: kl}", "a point model takes"),
        ("model: {similarity: mil}", "mil compares the embeddings of pvse"),
        ("model: {system: pvse}", "has 2 embeddings an item: it takes mil"),
        ("model: {system: pvse, similarity: kl, pvse: {embeddings: 1}}", "takes mil or cosine"),
        ("model: {system: pvse, similarity: mil, dim: 7}", "model.dim must be even for pvse"),
        ("model: {system: pvse, similarity: mil, pvse: {dropout: 1}}", "model.pvse.dropout"),
        ("model: {system: pvse, similarity: mil, probabilistic: true}", "its several points are"),
        ("model: {system: pcme}", "would never train the variances of pcme"),
        ("model: {system: pcme, similarity: kl, probabilistic: true}", "its Gaussians are its own"),
        ("model: {system: pcme, similarity: kl, pcme: {samples: 0}}", "model.pcme.samples"),
        ("loss: {name: soft-contrastive}", "needs model.similarity match_prob, not cosine"),
        ("loss: {diversity: 0.1}", "loss.diversity needs model.system pvse"),
        ("loss: {vib: 0.1}", "loss.vib needs variances"),
        ("loss: {mmd: -1}", "loss.mmd must not be negative"),
        ("model: {vsrn: {block: 3}}", "unknown key 'model.vsrn.block'; did you mean"),
        ("model: {vsrn: {over: images}}", "model.vsrn.over"),
        ("model: {vsrn: {generator: {dropout: 1}}}", "generator.dropout must be in"),
        ("model: {vsrn: {generator: {longest: 1}}}", "generator.longest must be 2 or more"),
        ("model: {system: vsrn, backbone: scenenet}", "vsrn takes features"),
        ("loss: {generation: -1}", "loss.generation must not be negative"),
        ("loss: {generation: 1}", "only a model with a generator"),
    ],
)
def test_a_bad_recipe_names_the_file_and_the_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        load_recipe(path)
    assert "bad.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("training.epoch", "3", "unknown key 'training.epoch'; did you mean 'training.epochs'"),
        ("nothing", "1", "unknown key 'nothing'"),
        ("training.epochs", "many", "training.epochs"),
    ],
)
def test_a_bad_override_is_refused(name: str, value: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"command line: .*{message}"):
        parse_overrides([f"--{name}", value])
    with pytest.raises(ValueError, match=message):
        load_recipe("scenes/vsepp", {name: value})


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_a_recipe_is_laid_over_its_base(tmp_path: Path) -> None:
    write(
        tmp_path,
        first="base: scenes/vsepp-kl\ntitle: first\ntraining: {epochs: 3}",
        second="base: first\ntitle: second\nmodel: {vsrn: {generator: {hidden: 8}}, dim: 8}",
    )
    named = load_recipe("scenes/vsepp-kl")
    recipe = load_recipe(tmp_path / "second.yaml")
    assert (recipe.title, recipe.training.epochs, recipe.model.dim) == ("second", 3, 8)
    assert (recipe.model.similarity, recipe.model.word_dim) == ("kl", named.model.word_dim)
    assert recipe.model.vsrn == replace(
        named.model.vsrn, generator=replace(named.model.vsrn.generator, hidden=8)
    )
    recipe.save(tmp_path / "whole.yaml")
    assert load_recipe(tmp_path / "whole.yaml") == recipe
    assert "base" not in (tmp_path / "whole.yaml").read_text()


def test_a_base_that_is_missing_or_leads_back_is_named(tmp_path: Path) -> None:
    write(tmp_path, a="base: b", b="base: c", c="base: a", lost="base: scenes/vsep")
    with pytest.raises(ValueError, match=r"c\.yaml: its bases lead back to it \(a → b → c → a\)"):
        load_recipe(tmp_path / "a.yaml")
    with pytest.raises(ValueError, match=r"lost\.yaml: base: unknown recipe .*'scenes/vsepp'"):
        load_recipe(tmp_path / "lost.yaml")
    write(tmp_path, wrong="base: scenes/vsepp\nmodel: {dimm: 3}", b="model: 3", a="base: b")
    with pytest.raises(ValueError, match=r"wrong\.yaml: unknown key 'model.dimm'"):
        load_recipe(tmp_path / "wrong.yaml")
    with pytest.raises(ValueError, match="'model' must hold fields"):
        load_recipe(tmp_path / "a.yaml")


def test_an_unknown_recipe_suggests_the_nearest_or_lists_the_known() -> None:
    with pytest.raises(ValueError, match="did you mean 'scenes/vsepp'"):
        load_recipe("scenes/vsep")
    with pytest.raises(ValueError, match=r"known are .*scenes/vsepp-kl"):
        load_recipe("nothing")


def test_a_field_that_is_a_mapping_is_saved_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "also.yaml"
    path.write_text("data: {name: coco, root: COCO, also: {flickr8k: F8K}}")
    recipe = load_recipe(path)
    assert recipe.data.also == {"flickr8k": "F8K"}
    recipe.save(tmp_path / "again.yaml")
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_further_data_sets_decide_a_run_and_seeds_are_checked() -> None:
    fields = {"data.root": "x", "data.also": {"flickr8k": "y"}}
    decides = identity(load_recipe("folder/vsepp-kl", fields))
    assert decides["data.also.flickr8k"] == "y"
    with pytest.raises(ValueError, match=r"training\.seed must be in \[0, 2³²\), got -1"):
        load_recipe("scenes/vsepp", {"training.seed": -1})


def test_a_recipe_with_a_field_of_its_old_name(tmp_path: Path) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text("model: {normalise_features: true}")
    new.write_text("model: {normalize_features: true}")
    assert load_recipe(old) == load_recipe(new)
    assert identity(load_recipe(new)) == {"model.normalise_features": True}  # runs keep theirs
