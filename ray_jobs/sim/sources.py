"""A digest of the sources that run, so that a result can say which program it is of."""

import hashlib
from functools import cache
from pathlib import Path

import tocsin.chaos
import tocsin.checker
import tocsin.core
import tocsin.engine
import tocsin.ray_jobs

_PARTS = (tocsin.core, tocsin.engine, tocsin.checker, tocsin.chaos, tocsin.ray_jobs)


@cache
def sources_digest() -> str:
    """SHA-256, hexadecimal, over path and text of every Python module of the parts that run."""
    digest = hashlib.sha256()
    for part in _PARTS:
        for folder in part.__path__:
            root = Path(folder).resolve()
            for path in sorted(root.rglob("*.py")):
                digest.update(str(path.relative_to(root.parent)).encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()
