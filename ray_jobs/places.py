"""The node folder: where the processes of one machine keep metrics, journal, snapshots, spans."""

import fcntl
import os
import tempfile
from pathlib import Path

METRICS_PORT = 9464
"""Of a node's hub, where nobody says otherwise."""

LINGER_S = 300.0
"""What a hub stays on a worker node where nobody serves any more."""

HUB_LOCK = "hub.lock"
"""In `metrics/`; held by the hub that reads there."""

_MODE = 0o700


def node_folder(folder: Path | None = None) -> Path:
    """The folder of this node, made if need be: `folder`, `$TOCSIN_STATE`, or one of this user's.

    All processes of a machine share it; prompts and answers may be in it, so others cannot read it.
    """
    if folder is None:
        chosen = os.environ.get("TOCSIN_STATE")
        own = Path(tempfile.gettempdir()) / f"tocsin-{os.getuid()}" / "node"
        folder = Path(chosen) if chosen else own
    if not folder.is_dir():
        folder.parent.mkdir(mode=_MODE, parents=True, exist_ok=True)
        folder.mkdir(mode=_MODE, exist_ok=True)
    return folder


def is_read(folder: Path) -> bool:
    """Whether the hub of some living cluster reads this node folder already."""
    try:
        with (folder / "metrics" / HUB_LOCK).open("rb") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def metrics_folder(folder: Path | None = None) -> Path:
    """Files of counters and gauges, one a process."""
    return _below(folder, "metrics")


def journal_folder(folder: Path | None = None) -> Path:
    """Failure records, one file a replica."""
    return _below(folder, "journal")


def snapshots_folder(folder: Path | None = None) -> Path:
    """Recorded calls of failures, one folder each."""
    return _below(journal_folder(folder).parent, "journal/snapshots")


def spans_folder(folder: Path | None = None) -> Path:
    """Spans of traces, one file a process."""
    return _below(folder, "spans")


def _below(folder: Path | None, name: str) -> Path:
    below = node_folder(folder) / name
    below.mkdir(mode=_MODE, exist_ok=True)
    return below
