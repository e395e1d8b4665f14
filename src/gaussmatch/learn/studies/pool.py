"""Many independent jobs, several at a time; one that fails does not take the others with it."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for
from typing import Any, TypeVar

import torch
from tqdm import tqdm

Item = TypeVar("Item")


def run_jobs(
    items: Sequence[Item],
    work: Callable[[Item], None],
    jobs: int = 1,
    after: Mapping[Item, Item] | None = None,
) -> Iterator[tuple[Item, str | None]]:
    """Do ``work`` for each item; yields (item, its error or ``None``) as they finish.

    Args:
        work: called in this process with one job, else in processes that share the cores (and the
            GPUs, one each in turn).
        after: item → the item that must be done before; if that fails, so does this.
    """
    if jobs < 1:
        raise ValueError(f"at least one job is needed, got {jobs}")
    after, failed = after or {}, set[Item]()
    if jobs == 1 or len(items) < 2:
        for item in _ordered(items, after):
            error = _blocked(item, after, failed) or attempt(work, item)
            if error is not None:
                failed.add(item)
            yield item, error
        return
    yield from _Pool(work, jobs, after).run(items)


def run_all(
    items: Sequence[Item],
    work: Callable[[Item], None],
    jobs: int,
    unit: str,
    name: Callable[[Item], object],
    after: Mapping[Item, Item] | None = None,
) -> dict[Item, str]:
    """As ``run_jobs``, with a progress bar; returns the errors by item."""
    errors: dict[Item, str] = {}
    with tqdm(total=len(items), desc=f"{unit}s", unit=unit, disable=not items) as bar:
        for item, error in run_jobs(items, work, jobs, after):
            bar.update()
            if error is not None:
                errors[item] = error
                bar.write(f"failed: {name(item)}: {error}")
    return errors


def attempt(work: Callable[[Item], None], item: Item) -> str | None:
    """The error as text, or ``None``."""
    try:
        work(item)
    except Exception as error:  # one job must not take the others with it
        return f"{type(error).__name__}: {error}"
    return None


class _Pool:
    """As many processes as jobs. If one dies, those that were running are tried again alone, and
    one that dies alone has failed."""

    def __init__(self, work: Callable[[Any], None], jobs: int, after: Mapping[Any, Any]) -> None:
        self.work, self.jobs, self.after = work, jobs, after
        self.failed: set[Any] = set()
        self.done: set[Any] = set()

    def run(self, items: Sequence[Any]) -> Iterator[tuple[Any, str | None]]:
        queue, suspects = deque(items), deque[Any]()
        flying: dict[Future[str | None], Any] = {}
        pool = self._start()
        try:
            while queue or suspects or flying:
                blocked = [i for i in queue if _blocked(i, self.after, self.failed)]
                for item in blocked:
                    queue.remove(item)
                    self.failed.add(item)
                    yield item, _blocked(item, self.after, self.failed)
                source, most = (suspects, 1) if suspects else (queue, self.jobs)
                ready = [i for i in source if self._ready(i, items)][: most - len(flying)]
                for item in ready:
                    source.remove(item)
                    flying[pool.submit(attempt, self.work, item)] = item
                alone = most == 1
                ended, _ = wait(flying, return_when=FIRST_COMPLETED)
                for future in ended:
                    item = flying.pop(future)
                    try:
                        error = future.result()
                    except BrokenProcessPool:
                        if not alone:
                            suspects.append(item)
                            continue
                        error = "its process died (out of memory, or killed)"
                    (self.done if error is None else self.failed).add(item)
                    yield item, error
                if ended and _broken(pool):
                    suspects.extend(flying.values())
                    flying.clear()
                    pool.shutdown(wait=False)
                    pool = self._start()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            if flying:  # interrupted: do not continue for a program that has ended
                for process in (pool._processes or {}).values():
                    process.terminate()

    def _ready(self, item: Any, items: Sequence[Any]) -> bool:
        before = self.after.get(item)
        return before is None or before in self.done or before not in items

    def _start(self) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        threads = max(1, torch.get_num_threads() // self.jobs)
        return ProcessPoolExecutor(
            self.jobs,
            mp_context=context,
            initializer=_start_worker,
            initargs=(threads, context.Value("i", 0)),
        )


def _start_worker(threads: int, started: Any) -> None:
    """Set up a new process: its share of the cores, its GPU, and its exit when its parent exits."""
    torch.set_num_threads(threads)
    with started.get_lock():
        number, started.value = started.value, started.value + 1
    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(number % torch.cuda.device_count())
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with, args=(parent.sentinel,), daemon=True).start()


def _exit_with(sentinel: int) -> None:
    """Exit with the parent: no child may go on training and write into the files of a successor."""
    wait_for([sentinel])
    os._exit(1)


def _broken(pool: ProcessPoolExecutor) -> bool:
    return bool(pool._broken)


def _ordered(items: Sequence[Item], after: Mapping[Item, Item]) -> list[Item]:
    """Every item after the one that it needs, else as given."""
    order: dict[Item, None] = {}
    for item in items:
        if item in after and after[item] in items:
            order.setdefault(after[item])
        order.setdefault(item)
    return list(order)


def _blocked(item: Item, after: Mapping[Item, Item], failed: set[Item]) -> str | None:
    return "what it starts from failed" if after.get(item) in failed else None
