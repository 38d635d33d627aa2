"""What a serving process does to itself because an experiment's note on its node says so."""

import resource
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tocsin.chaos import notes
from tocsin.core.errors import EnvironmentFault

_HEAD_BYTES = 1 << 20
_WEIGHTS = "*.safetensors"


@contextmanager
def start(folder: Path, weights: Path) -> Iterator[Path]:
    """Where to load the weights from; while a note says so, not from where they are.

    Args:
        folder: of the node.
        weights: folder of the model; it is only read.

    Raises:
        EnvironmentFault: a note says that this start fails.
    """
    note = notes.spend(folder, notes.START)
    if note is None:
        yield weights
        return
    if note.get("kind") == "raise":
        raise EnvironmentFault(
            "worker: this start fails because an experiment says so (actor.init_fail), expected "
            "to load the model; the next one may not"
        )
    with tempfile.TemporaryDirectory(prefix="truncated-", dir=folder) as copy:
        truncate(weights, Path(copy))
        yield Path(copy)


def truncate(weights: Path, copy: Path) -> None:
    """A copy of a model's folder whose weight files end after their first MiB, or at half."""
    for file in weights.iterdir():
        if not file.is_file():
            continue
        if not file.match(_WEIGHTS):
            shutil.copy(file, copy / file.name)
            continue
        kept = min(_HEAD_BYTES, file.stat().st_size // 2)
        with file.open("rb") as whole:
            (copy / file.name).write_bytes(whole.read(kept))


def run_out_of_memory(folder: Path, pid: int, note: Mapping[str, Any]) -> None:
    """Take more memory than a limit of this process's own allows; the limit comes first.

    The address space alone is limited and asked for: no page of it is ever touched, so the
    machine does not notice. What the allocator raises goes on to the caller.
    """
    import torch  # who leaves a note does not need it

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + int(note["headroom_bytes"])
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    said = f"{note['bytes']} bytes were given"
    try:
        torch.empty(int(note["bytes"]), dtype=torch.uint8)
    except (RuntimeError, MemoryError) as error:
        said = f"refused at {limit} bytes: {str(error).splitlines()[0][:200]}"
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        notes.leave(folder, notes.memory_answer(pid), {"said": said}, lasts_s=60.0)
