"""Runs shards in processes of their own, so that one that dies takes nothing with it but itself."""

import multiprocessing
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from tocsin.chaos.scale.shard import ShardResult

JudgeShard = Callable[[Path, int], ShardResult]
MEMORY_MB = 1024


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    line: Connection
    shard: int = -1


def judge_in_processes(
    judge: JudgeShard, folder: Path, shards: int, *, jobs: int, memory_mb: int
) -> Iterator[tuple[int, ShardResult | str]]:
    """Judge all shards, `jobs` at a time.

    Args:
        judge: importable by name, for the other processes.
        memory_mb: data that one process may hold before it fails.

    Yields:
        Each shard's number, and its result or why it has none.
    """
    waiting = list(reversed(range(shards)))
    workers: list[_Worker] = []
    try:
        while waiting or workers:
            while waiting and len(workers) < jobs:
                worker = _start(judge, folder, memory_mb)
                workers.append(worker)
                _order(worker, waiting.pop())
            ready = wait([worker.line for worker in workers])
            for worker in [one for one in workers if one.line in ready]:
                try:
                    yield worker.shard, worker.line.recv()
                except (EOFError, ConnectionError):
                    workers.remove(worker)
                    worker.process.join()
                    code = worker.process.exitcode
                    yield worker.shard, f"its process died (exit code {code})"
                    continue
                if waiting:
                    _order(worker, waiting.pop())
                else:
                    workers.remove(worker)
                    _stop(worker)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def judge_here(
    judge: JudgeShard, folder: Path, shards: int
) -> Iterator[tuple[int, ShardResult | str]]:
    """The same in this process: for small histories."""
    for shard in range(shards):
        yield shard, _safely(judge, folder, shard)


def _start(judge: JudgeShard, folder: Path, memory_mb: int) -> _Worker:
    context = multiprocessing.get_context("spawn")  # a fork would copy threads half-way
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, judge, folder, memory_mb), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _order(worker: _Worker, shard: int) -> None:
    worker.shard = shard
    with suppress(ConnectionError):  # it died: its end of the line says so
        worker.line.send(shard)


def _stop(worker: _Worker) -> None:
    worker.line.close()
    worker.process.join()


def _serve(line: Connection, judge: JudgeShard, folder: Path, memory_mb: int) -> None:
    """The other process: a shard in, a result out, until the line is closed."""
    limit = memory_mb << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    while True:
        try:
            shard = line.recv()
        except (EOFError, ConnectionError):
            return
        line.send(_safely(judge, folder, shard))


def _safely(judge: JudgeShard, folder: Path, shard: int) -> ShardResult | str:
    try:
        return judge(folder, shard)
    except MemoryError:
        return "it needs more memory than it may hold; allow more, or record more shards"
    except Exception as error:  # noqa: BLE001 - told: a shard that breaks is unknown for itself
        return f"{type(error).__name__}: {error}"
