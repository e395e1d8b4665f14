"""Hooks of the documentation site: notebooks become pages, links out of docs/ lead to the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

CODE = "https://github.com/gaussmatch/gaussmatch/blob/main/"


def on_files(files: Files, config: Any) -> Files:
    """A page for each notebook: its text as it is, its code as blocks."""
    folder = Path(config.docs_dir) / "notebooks"
    for path in sorted(folder.glob("*.ipynb")):
        name = f"notebooks/{path.stem}.md"
        note = f"*This page is a notebook: [{path.name}]({CODE}docs/notebooks/{path.name}).*"
        files.append(File.generated(config, name, content=f"{page_of(path)}\n\n{note}\n"))
    return files


def page_of(notebook: Path) -> str:
    """The cells of a notebook as Markdown."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = [(cell["cell_type"], "".join(cell["source"])) for cell in cells]
    return "\n\n".join(
        f"```python\n{text}\n```" if kind == "code" else text for kind, text in texts
    )


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """``](../examples/x.py)`` leads to the repository, as the site holds docs/ alone, and a link
    to a notebook to its page."""
    if "/" in page.file.src_uri:
        return markdown
    markdown = re.sub(r"\]\(\.\./([^)]+)\)", rf"]({CODE}\1)", markdown)
    return re.sub(r"\]\((notebooks/[\w-]+)\.ipynb\)", r"](\1.md)", markdown)
