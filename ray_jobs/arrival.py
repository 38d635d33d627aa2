"""Waiting for what comes late on a cluster: a ConfigMap's new text in a pod, a served model."""

import hashlib
import os
import re
from pathlib import Path

from tocsin.chaos.policy import POLICY_ENV
from tocsin.core.clock import Clock
from tocsin.core.errors import EnvironmentFault, SpecError
from tocsin.ray_jobs.service import ask

WITHIN_S = 180.0
"""A kubelet looks at the ConfigMaps of running pods about once a minute, and caches what it saw."""
_PAUSE_S = 1.0
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


def wait_for_file(path: Path, sha256: str, clock: Clock) -> None:
    """Return once the file has these bytes.

    Args:
        sha256: of the bytes, hexadecimal.

    Raises:
        EnvironmentFault: it has others all the time, or is not there.
        SpecError: `sha256` is no such digest.
    """
    if not _SHA256.fullmatch(sha256):
        raise SpecError(
            f"{path}: its SHA-256 is to be {sha256!r}, expected 64 hexadecimal digits; correct it"
        )
    until_ns = clock.now_ns() + int(WITHIN_S * 1e9)
    while (found := _digest(path)) != sha256.lower():
        if clock.now_ns() >= until_ns:
            raise EnvironmentFault(
                f"{path}: its SHA-256 is {found or 'unknown, it cannot be read'}, expected "
                f"{sha256} within {WITHIN_S:g} s; see whether the pod mounts the ConfigMap, and "
                "whether somebody has changed it since"
            )
        clock.sleep(_PAUSE_S)


def wait_for_policy(sha256: str, clock: Clock) -> None:
    """The same for the chaos policy of this place.

    Raises:
        EnvironmentFault: this place has none, or another one all the time.
    """
    path = os.environ.get(POLICY_ENV, "")
    if not path:
        raise EnvironmentFault(
            f"chaos: --policy-sha256 is given and {POLICY_ENV} is not set, expected the policy's "
            "path; set it or leave the option out"
        )
    wait_for_file(Path(path), sha256, clock)


def wait_for_service(url: str, within_s: float, clock: Clock) -> None:
    """Return once an application can be attacked: all its replicas live.

    A run that is made with its release begins while the weights are still loading.

    Raises:
        EnvironmentFault: what it said last, when the time is over.
    """
    until_ns = clock.now_ns() + int(within_s * 1e9)
    while True:
        try:
            ask(url)
        except EnvironmentFault:
            if clock.now_ns() >= until_ns:
                raise
        else:
            return
        clock.sleep(_PAUSE_S)


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
