"""What a run writes while it trains: JSON lines always, TensorBoard where it is installed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tqdm import tqdm

from gaussmatch.files import write_text
from gaussmatch.models.run import BOARD, LOG, unseal, writing


class RunLog:
    """Appends records to the run's log; numbers also go to TensorBoard.

    A resumed run first drops the records after its checkpoint, so that the log reads as that of
    an uninterrupted run. One that does not write is for a process that is not the main one.
    """

    def __init__(self, folder: Path, steps_done: int = 0, *, writes: bool = True) -> None:
        self._path, self._writes, self._board = folder / LOG, writes, None
        if not writes:
            return
        kept = [r for r in read_log(folder) if r["step"] <= steps_done] if steps_done else []
        write_text(self._path, "".join(json.dumps(r) + "\n" for r in kept))
        unseal(folder, LOG)
        self._board = _board(folder / BOARD, kept[-1]["step"] if kept else 0)

    def write(self, event: str, epoch: int, step: int, **values: Any) -> None:
        if not self._writes:
            return
        record = {"event": event, "epoch": epoch, "step": step, **values}
        with writing(self._path):
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
            if self._board is not None:
                for name, value in values.items():
                    if isinstance(value, int | float):
                        self._board.add_scalar(f"{event}/{name}", value, step)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """All records of a run's log; a last line cut short by a kill is left out."""
    path = folder / LOG
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            break
        if "kind" in record:  # as runs before 0.2 have it
            record = {"event": record.pop("kind"), **record}
        records.append(record)
    return records


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        tqdm.write("TensorBoard is not installed (extra 'report'): curves go to log.jsonl only")
        return None
    return SummaryWriter(str(folder), purge_step=step + 1 if step else None)
