"""Findings and decisions in the JSON of Label Studio and FiftyOne: teams use what they have.

A finding is a dictionary: a row of ``audit.csv``. Label Studio takes a list of tasks and a labeling
configuration, and exports the tasks with ``annotations`` (JSON) or their values (JSON-MIN); it
shows no files of the disk, so the pictures are inside the tasks. FiftyOne reads
``Dataset.from_json`` and writes ``Dataset.write_json``; there a decision is the field ``decision``,
or a tag of that name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]

DECISIONS = {
    "accept": "it is fine as it is",
    "own": "it fits only its own photo, not the other",
    "fix": "replace the caption",
    "swap": "exchange two captions",
    "drop": "remove the caption, or the photo",
}
CHECKED = ("accept", "own")
"""Decisions that change nothing; the next audit does not ask again."""
FIELDS = ("issue", "image", "caption", "text", "other", "other_caption", "other_text", "reason",
          "proposal")  # fmt: skip
"""Of a finding, those that the other tools are given and give back."""

LABELING = f"""\
<!-- made by gaussmatch audit export -->
<View>
  <Header value="$issue: $reason"/>
  <Image name="photo" value="$photo"/>
  <Text name="said" value="$text"/>
  <Text name="instead" value="$other_text"/>
  <Choices name="decision" toName="photo" choice="single" required="true">
    {"".join(f'<Choice value="{decision}"/>' for decision in DECISIONS)}
  </Choices>
  <TextArea name="fixed" toName="photo" value="$text" maxSubmissions="1" editable="true"/>
</View>
"""
"""The labeling configuration that the tasks are made for."""


def label_studio(rows: Sequence[Row], photo: Callable[[Row], str]) -> list[dict[str, Any]]:
    """Tasks: the finding as data, with the address of its photo, what the audit proposes as a
    prediction."""
    return [
        {
            "data": {"photo": photo(row), **{name: row[name] for name in FIELDS}},
            "predictions": [
                {
                    "model_version": "gaussmatch",
                    "score": min(1.0, float(row["severity"])),  # more is refused
                    "result": [_chosen(row["proposal"])],
                }
            ]
            if row["proposal"]
            else [],
        }
        for row in rows
    ]


def _chosen(decision: str) -> dict[str, Any]:
    return {
        "from_name": "decision",
        "to_name": "photo",
        "type": "choices",
        "value": {"choices": [decision]},
    }


_TEXT = "fiftyone.core.fields.StringField"
_SCHEMA = {
    "filepath": _TEXT,
    "tags": f"fiftyone.core.fields.ListField({_TEXT})",
    "severity": "fiftyone.core.fields.FloatField",
    **dict.fromkeys((*FIELDS, "decision", "fixed"), _TEXT),
}


def fiftyone(rows: Sequence[Row], name: str) -> dict[str, Any]:
    """A data set with a sample for each finding."""
    samples: list[dict[str, Any]] = [
        {
            "filepath": str(Path(row["file"]).resolve()),
            "tags": [],
            "severity": float(row["severity"]),
            **{field: row[field] or None for field in FIELDS},
            "decision": None,
            "fixed": None,
        }
        for row in rows
    ]
    return {
        "name": name,
        "media_type": "image",
        "sample_fields": _SCHEMA,
        "info": {"made by": "gaussmatch audit"},
        "samples": samples,
    }


def decided(content: Any, path: Path) -> list[dict[str, Any]]:
    """The findings of a file, with what was decided: of either tool, or our own list."""
    if isinstance(content, dict) and isinstance(content.get("samples"), list):
        return [_of_sample(sample) for sample in content["samples"]]
    if isinstance(content, list) and all(isinstance(entry, dict) for entry in content):
        return [_of_task(entry) if "data" in entry else entry for entry in content]
    raise ValueError(
        f"{path}: neither decisions nor an export of Label Studio (JSON) or FiftyOne (write_json)"
    )


def _of_sample(sample: dict[str, Any]) -> dict[str, Any]:
    tags = [tag for tag in sample.get("tags") or () if tag in DECISIONS]
    return {**sample, "decision": sample.get("decision") or (tags[-1] if tags else "")}


def _of_task(task: dict[str, Any]) -> dict[str, Any]:
    """The last annotation that was not cancelled; a new caption alone is a fix."""
    found = {**task["data"], "decision": "", "fixed": ""}
    kept = [a for a in task.get("annotations") or () if not a.get("was_cancelled")]
    for result in kept[-1]["result"] if kept else ():
        value = result.get("value", {})
        if result.get("from_name") == "decision" and value.get("choices"):
            found["decision"] = value["choices"][0]
        if result.get("from_name") == "fixed" and value.get("text"):
            text = value["text"]
            found["fixed"] = text if isinstance(text, str) else text[-1]
    if not found["decision"] and found["fixed"].strip() not in ("", str(found.get("text"))):
        found["decision"] = "fix"
    return found
