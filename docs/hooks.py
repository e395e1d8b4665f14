"""Hooks of the documentation site.

Pages that only repeat what the code says are written here, from the code, whenever the site is
built: every verb and option, every field of a recipe, the HTTP API, the file formats and the table
of ``make bench``. Notebooks become pages, and links out of docs/ lead to the repository.
"""

from __future__ import annotations

import json
import re
from argparse import _HelpAction
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Any, get_type_hints

from docstring_parser import parse as parse_docstring
from mkdocs.structure.files import File, Files

CODE = "https://github.com/gaussmatch/gaussmatch/blob/main/"
BENCH = "<!-- make bench -->"


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and one page for each notebook."""
    pages = {
        "reference-cli.md": command_line(),
        "reference-recipe.md": recipe_fields(),
        "reference-http.md": http_api(),
        "reference-files.md": file_formats(),
    }
    for path in sorted((Path(config.docs_dir) / "notebooks").glob("*.ipynb")):
        note = f"*This page is a notebook: [{path.name}]({CODE}docs/notebooks/{path.name}).*"
        pages[f"notebooks/{path.stem}.md"] = f"{page_of(path)}\n\n{note}\n"
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """``](../examples/x.py)`` leads to the repository, since the site holds docs/ alone; a link to
    a notebook leads to its page; the table of ``make bench`` is filled in."""
    if "/" in page.file.src_uri:
        return markdown
    if BENCH in markdown:
        markdown = markdown.replace(BENCH, bench_table(Path(config.docs_dir) / "performance.json"))
    markdown = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({CODE}\1)", markdown)
    return re.sub(r"\]\((notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", markdown)


def page_of(notebook: Path) -> str:
    """The cells of a notebook as Markdown."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(
        f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts
    )


# --- the command line ---


def command_line() -> str:
    """Every verb with its options, defaults and examples."""
    from gaussmatch.apps.cli.doctor import parsers

    parts = [
        "# Command line",
        "Generated from the parsers. `gaussmatch VERB --help` prints the same. Options may stand "
        "before or after the arguments. Verbs that read a recipe also take every "
        "[field](reference-recipe.md) of it, as in `--training.epochs 20`.",
    ]
    for _, parser, _ in parsers():
        if parser is None:  # a verb that only has sub-verbs
            continue
        rows = [
            f"| {_name(action)} | {_cell(parser._get_formatter()._expand_help(action))} |"
            for action in parser._actions
            if not isinstance(action, _HelpAction) and action.help
        ]
        notes, _, examples = (parser.epilog or "").rpartition("examples:\n")
        verbs = re.match(r"with an index:", notes)
        parts += [f"## {parser.prog}", " ".join((parser.description or "").split())]
        parts += [" ".join(notes.split())] if notes.strip() and not verbs else []
        parts += ["\n".join(["| option | meaning |", "|---|---|", *rows])] if rows else []
        shown = "\n".join(line.strip() for line in examples.splitlines())
        parts += [f"```sh\n{shown}\n```"]
    return "\n\n".join(parts) + "\n"


def _name(action: Any) -> str:
    takes = action.metavar or (action.choices and " \\| ".join(map(str, action.choices)))
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    if action.nargs == 0:
        return ", ".join(f"`{name}`" for name in action.option_strings)
    value = takes if isinstance(takes, str) else action.dest.upper()
    names = ", ".join(f"`{name}`" for name in action.option_strings)
    return f"{names} {value}"


# --- recipes ---


def recipe_fields() -> str:
    """Every field of a recipe: type, default, meaning, from the dataclasses."""
    from gaussmatch.models.recipe import Recipe

    head = (
        "# Fields of a recipe\n\n"
        "Generated from the dataclasses. A recipe is a YAML file with these sections; any field "
        "can be given on the command line too (`--model.dim 128`). `base: NAME` starts from "
        "another recipe."
    )
    return "\n\n".join([head, *_sections(Recipe, "")]) + "\n"


def _sections(recipe: type, name: str) -> Iterator[str]:
    documented = parse_docstring(recipe.__doc__ or "")
    meaning = {entry.arg_name: entry.description or "" for entry in documented.params}
    types = get_type_hints(recipe)
    rows, below = [], []
    for field in fields(recipe):
        full = f"{name}.{field.name}" if name else field.name
        if is_dataclass(types[field.name]):
            below.append((types[field.name], full))
            continue
        given = field.default if field.default is not MISSING else field.default_factory()  # type: ignore[misc]
        said = _cell(meaning.get(field.name, ""))
        rows.append(f"| `{full}` | {_type(types[field.name])} | `{given!r}` | {said} |")
    if rows and name:
        said = " ".join((documented.short_description or "").split())
        yield f"## {name}\n\n{said}"
    if rows:
        yield "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])
    for part, full in below:
        yield from _sections(part, full)


def _type(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    text = re.sub(r"typing\.Literal\[(.*?)\]", lambda m: m[1].replace("'", ""), text)
    return _cell(re.sub(r"\b(?:typing|collections\.abc|pathlib)\.", "", text))


# --- HTTP ---


def http_api() -> str:
    """Every call of the service, from its OpenAPI description."""
    from fastapi import FastAPI

    from gaussmatch.apps.service import routes
    from gaussmatch.apps.service.app import DESCRIPTION

    app = FastAPI(title="gaussmatch", version="-")
    app.include_router(routes.api)
    app.include_router(routes.probes)
    described = app.openapi()
    parts = [
        "# HTTP API",
        "Generated from the OpenAPI description, which a running service gives at `/openapi.json`.",
        DESCRIPTION.strip(),
    ]
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            parts.append(f"## {method.upper()} {path}")
            parts.append(" ".join(call.get("description", "").split()))
            rows = [
                f"| `{p['name']}` | {_schema(p['schema'])} | {_cell(p.get('description', ''))} |"
                for p in call.get("parameters", ())
            ]
            if rows:
                parts.append("\n".join(["| parameter | type | meaning |", "|---|---|---|", *rows]))
            parts.append(f"Answers {_answers(call['responses'])}.")
    for name, schema in described["components"]["schemas"].items():
        rows = [
            f"| `{field}` | {_schema(one)} | {_cell(one.get('description', ''))} |"
            for field, one in schema.get("properties", {}).items()
        ]
        said = " ".join(str(schema.get("description", "")).partition("Args:")[0].split())
        parts += [f"## {name}", *([said] if said else [])]
        if rows:
            parts.append("\n".join(["| field | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"


def _answers(responses: dict[str, Any]) -> str:
    good, bad = [], []
    for status, response in sorted(responses.items()):
        content = response.get("content", {})
        schema = next(iter(content.values()), {}).get("schema", {})
        link = schema.get("$ref", "").rpartition("/")[2]
        said = f" with {_schema(schema)}" if link and status == "200" else ""
        (good if status < "400" else bad).append(f"{status}{said}")
    return ", ".join(good) + (f"; errors: {', '.join(bad)}" if bad else "")


def _schema(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_schema(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " \\| ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_schema(schema.get('items', {}))}"
    return str(kind)


# --- files ---

FORMATS = {
    "A run": "gaussmatch.models.run",
    "An index": "gaussmatch.search.backends.folder.layout",
    "Shards of Gaussians": "gaussmatch.search.embedding",
    "Embeddings": "gaussmatch.data.embeddings",
    "Precomputed features": "gaussmatch.data.stored",
    "Packed features": "gaussmatch.data.stored:PackedFeatures",
    "An item of an index": "gaussmatch.search.manifest:Record",
}


def file_formats() -> str:
    """What each kind of file and folder holds, from the docstring of the module that owns it."""
    parts = [
        "# File formats",
        "Generated from the modules that read and write these files. [Your data](data.md) has the "
        "layouts of data sets, and [encoders](encoders.md#gaussians-as-parquet) the columns of a "
        "Parquet file.",
    ]
    for title, place in FORMATS.items():
        module, _, name = place.partition(":")
        owner: Any = import_module(module)
        text = ((getattr(owner, name) if name else owner).__doc__ or "").strip()
        said, _, rest = text.partition("\n\n")
        parts += [f"## {title}", " ".join(said.split())]
        parts += [f"```text\n{_dedent(rest)}\n```"] if rest else []
        parts += [f"Home: `{module}`."]
    return "\n\n".join(parts) + "\n"


def _dedent(text: str) -> str:
    return cleandoc("x\n" + text)[2:].strip().replace("``", "")


# --- performance ---


def bench_table(path: Path) -> str:
    """The table of ``make bench``, from the numbers it keeps."""
    found = json.loads(path.read_text(encoding="utf-8"))
    lines = ["| | what | against | ratio | middle half | limit |", "|---|---|---|---|---|---|"]
    for row in found["rows"]:
        digits = 4 if row["ratio"] < 0.1 else 2
        ratio, low, high = (f"{row[key]:.{digits}f}" for key in ("ratio", "low", "high"))
        cells = (row["section"], row["what"], row["against"], f"**{ratio}**", f"{low}–{high}")
        lines.append(f"| {' | '.join(cells)} | {row['met']} |")
    machine = ", ".join(f"{key} {value}" for key, value in found["machine"].items())
    return f"{machine}\n\n" + "\n".join(lines)


def _cell(text: str) -> str:
    """Text inside a cell of a table."""
    return " ".join(text.split()).replace("``", "`").replace("|", "\\|").replace("<", "&lt;")
