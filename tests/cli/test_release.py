"""What a release brings besides the library: doctor, completion, and the image of the service."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

import gaussmatch as gm
from gaussmatch.apps.cli import VERBS, doctor, main
from gaussmatch.apps.service.server import listening

ROOT = Path(__file__).resolve().parents[2]


def test_doctor_says_what_works_and_how_to_get_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "timm" else "1.0")
    monkeypatch.setitem(doctor.WEIGHTS, "other weights", ("no_such_package", "pip install it"))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"gaussmatch: {gm.__version__}" in shown
    assert f"cache: {tmp_path / 'cache'}" in shown
    assert (
        "--  vision, image encoders of timm: no timm\n       pip install 'gaussmatch[vision]'"
        in shown
    )
    assert "--  other weights: not installed\n       pip install it" in shown
    assert main(["doctor", "--json"]) == 0
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert not found["other weights"]["works"]
    assert found["threads"]["works"]


def test_doctor_names_a_cache_that_others_can_write_to(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GAUSSMATCH_CACHE", str(tmp_path))
    tmp_path.chmod(0o777)
    assert main(["doctor"]) == 0
    assert "--  cache: " in capsys.readouterr().out


def test_doctor_knows_every_extra_that_has_packages_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own = {
        name
        for name, wanted in project["optional-dependencies"].items()
        if not all(one.startswith("gaussmatch[") for one in wanted)
    }
    assert own - {"dev", "docs", "photos", "service"} == set(doctor.FOR)


def completed(line: str) -> set[str]:
    """What bash offers at the end of a line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    typed = " ".join(map(shlex.quote, words))
    code = f"{doctor.bash()}\nCOMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _gaussmatch\n"
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True)
    assert done.stderr == ""
    return set(done.stdout.split())


def test_bash_completes_verbs_options_and_values() -> None:
    assert completed("gaussmatch ") == set(VERBS)
    assert completed("gaussmatch se") == {"search", "serve"}
    assert completed("gaussmatch search photos.index --so") == {"--sort"}
    assert {"add", "--out", "--structure"} <= completed("gaussmatch index ")
    assert completed("gaussmatch index compact --str") == {"--structure"}
    assert completed("gaussmatch index compact photos.index --structure h") == {"hnsw"}
    assert completed("gaussmatch index my-photos --structure c") == {"compressed"}
    assert completed("gaussmatch completion ") >= {"bash", "zsh", "fish"}


def test_every_shell_gets_every_verb_and_option() -> None:
    scripts = {"zsh": doctor.zsh(), "fish": doctor.fish()}
    for words, parser, _ in doctor.parsers():
        verb = words.split()[0]
        assert (parser is None) == (words in ("data", "scenes")), words
        for action in parser._actions if parser else ():
            for name in action.option_strings:
                assert name in scripts["zsh"]
                flag = f"-l {name[2:]} " if name.startswith("--") else f"-s {name[1:]} "
                lines = [one for one in scripts["fish"].splitlines() if f"from {verb}" in one]
                assert any(flag in f"{line} " for line in lines), (words, name)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile, line by line."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_image_has_what_it_copies_and_runs_as_an_ordinary_user() -> None:
    last = instructions()[
        1 + max(n for n, (name, _) in enumerate(instructions()) if name == "FROM") :
    ]
    (user,) = [rest for name, rest in last if name == "USER"]
    uid, gid = map(int, user.split(":"))
    assert uid >= 10000
    assert gid >= 10000
    assert [name for name, _ in last].index("USER") < [name for name, _ in last].index("ENTRYPOINT")
    for name, rest in instructions():
        assert name not in ("ADD", "VOLUME")
        if name == "FROM":
            assert ":" in rest.split()[0]
            assert not rest.split()[0].endswith(":latest")
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                ignored = (ROOT / ".dockerignore").read_text().splitlines()
                assert f"!{source}" in ignored
    (build,) = [rest for name, rest in instructions() if name == "RUN"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert '".[photos,service]"' in build
    assert {"photos", "service"} <= set(project["optional-dependencies"])


def test_the_image_serves_and_its_health_check_agrees(tiny_run: Path, tmp_path: Path) -> None:
    """Its command line and environment, without the image: nothing is written but to /tmp."""
    place, home, here = tmp_path / "index", tmp_path / "tmp", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    assert main(["index", str(tiny_run), "--split", "test", "--out", str(place)]) == 0
    before = {path: path.stat().st_mtime_ns for path in place.rglob("*")}
    known = dict(reversed(instructions()))
    with listening("127.0.0.1", 0) as sock:
        port = str(sock.getsockname()[1])
    entry, command = json.loads(known["ENTRYPOINT"]), json.loads(known["CMD"])
    words = [{"/index": str(place), "8000": port}.get(word, word) for word in command]
    variables = dict(one.split("=", 1) for one in known["ENV"].split() if "/opt" not in one)
    env = {
        n: v.replace("/tmp", str(home), 1) if v.startswith("/tmp") else v
        for n, v in variables.items()
    }
    env = {**os.environ, **env, "SEARCH_KEY": "a-long-key"}
    log = open(tmp_path / "log", "w")  # noqa: SIM115
    service = subprocess.Popen(
        [sys.executable, "-m", *entry, *words], cwd=here, env=env, stdout=log, stderr=log
    )
    try:
        for _ in range(3000):
            assert service.poll() is None, (tmp_path / "log").read_text()
            try:
                urlopen(f"http://127.0.0.1:{port}/readyz", timeout=4)
                break
            except (URLError, OSError):
                time.sleep(0.1)
        check = json.loads(known["HEALTHCHECK"].partition(" CMD ")[2])
        code = check[2].replace("8000", port)
        assert check[:2] == ["python", "-c"]
        assert subprocess.run([sys.executable, "-c", code]).returncode == 0
        with pytest.raises(URLError):  # no key
            urlopen(f"http://127.0.0.1:{port}/api/about", timeout=4)
    finally:
        service.terminate()
        service.wait()
        log.close()
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 1
    assert {path: path.stat().st_mtime_ns for path in place.rglob("*")} == before
    assert not list(here.iterdir())


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == gm.__version__
    assert {"cff-version", "message", "title", "authors", "license"} <= set(cited)
    assert all({"given-names", "family-names"} <= set(a) for a in cited["references"][0]["authors"])
