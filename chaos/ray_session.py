"""The processes of one Ray session on this machine, as their command lines in /proc tell."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tocsin.core.errors import EnvironmentFault

_GCS, _RAYLET = "gcs_server", "raylet"
_SESSION, _NODE, _LOGS = "session-name", "node-id", "log-dir"


@dataclass(frozen=True, slots=True)
class RayProcess:
    """A process of Ray's own; `options` are those of its command line, with dashes."""

    pid: int
    name: str
    options: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RaySession:
    """One session: everything that it started bears its name.

    Attributes:
        logs: folder of its logs on this machine.
        head: id of the head, whose own node is never struck.
    """

    name: str
    logs: Path
    head: str = ""

    @classmethod
    def of_head(cls, node: str) -> "RaySession":
        """The session of a head node on this machine.

        Args:
            node: its id, hexadecimal.

        Raises:
            EnvironmentFault: no raylet of this user says that it is this node.
        """
        for one in _ray_processes():
            if one.name == _RAYLET and one.options.get(_NODE) == node:
                return cls(one.options[_SESSION], Path(one.options[_LOGS]), node)
        raise EnvironmentFault(
            f"ray: no raylet of this user on this machine is node {node}, expected one; a fault "
            "on Ray itself is done where its processes can be seen"
        )

    def gcs(self) -> int | None:
        """Pid of the control plane (GCS); None: it is not here, or not this user's."""
        return self._pid(_GCS, None)

    def raylet(self, node: str) -> int | None:
        """Pid of a node's raylet; None: it is not here (any more)."""
        return self._pid(_RAYLET, node)

    def _pid(self, name: str, node: str | None) -> int | None:
        for one in _ray_processes():
            mine = one.name == name and one.options.get(_SESSION) == self.name
            if mine and (node is None or one.options.get(_NODE) == node):
                return one.pid
        return None


def _ray_processes() -> Iterator[RayProcess]:
    """Those of this user alone: nobody else's are ever struck."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if folder.stat().st_uid != os.getuid():
                continue
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended meanwhile
        name = Path(words[0]).name
        if name in (_GCS, _RAYLET):
            yield RayProcess(int(folder.name), name, _options(words[1:]))


def _options(words: list[str]) -> dict[str, str]:
    """`--node_id=ab` and `--node-id=ab` are one: Ray writes both."""
    pairs = (word[2:].partition("=") for word in words if word.startswith("--"))
    return {name.replace("_", "-"): value for name, _, value in pairs}
