"""Runs a Dockerfile's instructions on this machine, at the paths that they name.

There is no container engine here. A mount namespace stands in for one: folders of the test lie over
/opt/tocsin, /var/lib/tocsin, /etc and /tmp, so that every command runs as it is written and the
machine stays as it was. The system below is this machine's, not the base image's.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from dockerfile_parse import DockerfileParser

BASE = "/usr/local/sbin"
"""First on the path and as a rule empty: here the base image's `python` is put."""

PYTHON = "/mnt"
"""Where this machine's Python is seen: it may live in a home that nobody else may enter."""

OVERLAID = ("/opt/tocsin", "/var/lib/tocsin", "/etc", BASE, "/dev/shm", "/var/tmp", "/tmp")
"""/tmp comes last: the folders that lie over the others may be in it."""
_LIMIT_S = 800


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a Dockerfile, continuation lines joined.

    Attributes:
        name: RUN, COPY, ENV …
        value: the rest of it.
        stage: name of the stage that it belongs to; empty before the first.
    """

    name: str
    value: str
    stage: str


def instructions(dockerfile: Path) -> list[Instruction]:
    """All of a file, comments left out."""
    parser = DockerfileParser(path=str(dockerfile), cache_content=True)
    stage, found = "", []
    for one in parser.structure:
        if one["instruction"] == "FROM":
            stage = one["value"].rpartition(" AS ")[2]
        if one["instruction"] != "COMMENT":
            found.append(Instruction(one["instruction"], one["value"], stage))
    return found


def context_files(root: Path, tracked: Sequence[Path]) -> Iterator[Path]:
    """What of the tracked files `.dockerignore` lets into a build: everything is shut out first."""
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = {line[1:] for line in lines if line.startswith("!")}
    for path in tracked:
        if path.parts[0] in allowed:
            yield path


@dataclass
class Sandbox:
    """The file system of an image under construction, and its environment.

    Args:
        folder: an empty one, on a file system that can hold an environment of 2 GB.
        context: folder of what `COPY` copies from.
        arguments: build arguments.
    """

    folder: Path
    context: Path
    arguments: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    directory: str = "/"
    user: str = "0:0"
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    made: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Lay out the folders that will lie over the machine's own."""
        shutil.copytree("/etc", self._over("/etc"), symlinks=True)
        for place in OVERLAID:
            self._over(place).mkdir(exist_ok=True)
            if not Path(place).exists():
                Path(place).mkdir(parents=True)  # something to mount upon, empty outside
                self.made.append(Path(place))
        python = self._over(BASE) / "python"
        name = Path(sys._base_executable).resolve().name
        # A script: behind a link the interpreter would not find its library.
        python.write_text(f'#!/bin/sh\nexec {PYTHON}/bin/{name} "$@"\n')
        python.chmod(0o755)
        for place in ("/tmp", "/var/tmp", "/dev/shm"):
            self._over(place).chmod(0o1777)

    def build(self, stages: Sequence[Sequence[Instruction]]) -> None:
        """Run stage after stage; each begins with a fresh environment, as in an engine.

        Raises:
            AssertionError: a command failed.
        """
        for stage in stages:
            path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            self.environment = {"PATH": path}
            self.directory, self.user = "/", "0:0"
            declared: dict[str, str] = {}
            for one in stage:
                self._take(one, declared)

    def close(self) -> None:
        """Take the mount points away that the machine did not have."""
        for place in self.made:
            place.rmdir()

    def run(
        self, words: Sequence[str], *, network: bool = True, limit_s: float = _LIMIT_S
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command as the image would: its environment, user and directory.

        Args:
            network: False: a network of its own, with nothing but loopback, so that a server may
                listen on the very port and address that the image says.
        """
        mounts = [f"mount --bind {shlex.quote(sys.base_prefix)} {PYTHON}"]
        mounts += [f"mount --bind {self._over(place)} {place}" for place in OVERLAID]
        # What the test lays over is all that can be written; the user could not write elsewhere.
        up = "" if network else "ip link set lo up 2>/dev/null || python3 -c " + shlex.quote(_UP)
        uid, _, gid = self.user.partition(":")
        drop = "" if uid == "0" else f"setpriv --reuid={uid} --regid={gid} --clear-groups "
        # A Python built with a shared library looks for it where it was built, too.
        settings = {"LD_LIBRARY_PATH": f"{PYTHON}/lib", **self.environment}
        setting = " ".join(shlex.quote(f"{name}={value}") for name, value in settings.items())
        start = f"exec {drop}env -i {setting} " + '"$@"'
        script = "\n".join(["set -e", *mounts, up, f"cd {shlex.quote(self.directory)}", start])
        space = ["unshare", "--mount", "--propagation", "private", *([] if network else ["--net"])]
        return subprocess.run(
            [*space, "bash", "-c", script, "sandbox", *words],
            capture_output=True,
            text=True,
            timeout=limit_s,
        )

    def path(self, place: str) -> Path:
        """Where a file of the image lies on this machine."""
        for one in OVERLAID:
            if place == one or place.startswith(f"{one}/"):
                return self._over(one) / place[len(one) :].lstrip("/")
        return Path(place)

    def _over(self, place: str) -> Path:
        return self.folder / place.strip("/").replace("/", "_")

    def _take(self, one: Instruction, declared: dict[str, str]) -> None:
        if one.name == "ARG":
            name, _, default = one.value.partition("=")
            declared[name] = self.arguments.get(name, default.strip('"'))
        elif one.name == "ENV":
            for name, value in pairs(one.value):
                self.environment[name] = expand(value, {**self.environment, **declared})
        elif one.name == "RUN":
            self._run_line(one.value, declared)
        else:
            takers: dict[str, Callable[[str], None]] = {"COPY": self._copy}
            takers |= dict.fromkeys(("FROM", "LABEL", "EXPOSE", "HEALTHCHECK"), lambda value: None)
            takers |= {
                name: partial(self._set, name)
                for name in ("SHELL", "ENTRYPOINT", "CMD", "USER", "WORKDIR")
            }
            takers[one.name](one.value)

    def _set(self, name: str, value: str) -> None:
        words = {"SHELL": "shell", "ENTRYPOINT": "entrypoint", "CMD": "command"}
        if name in words:
            setattr(self, words[name], json.loads(value))
        elif name == "USER":
            self.user = value
        else:
            self.directory = value
            self.path(value).mkdir(parents=True, exist_ok=True)

    def _run_line(self, line: str, declared: dict[str, str]) -> None:
        here = dict(self.environment)
        self.environment |= declared
        done = self.run([*self.shell, line])
        self.environment = here
        assert done.returncode == 0, f"RUN {line}\n{done.stdout[-2000:]}{done.stderr}"

    def _copy(self, value: str) -> None:
        *sources, target = value.split()
        if sources[0].startswith("--from="):
            # The stages share one file system here; that the thing is there is what can be seen.
            assert all(self.path(source).exists() for source in sources[1:]), value
            return
        where = self.path(os.path.join(self.directory, target))
        for source in sources:
            found = self.context / source
            assert found.exists(), f"COPY {value}: found no {source} in the build context"
            if found.is_dir():
                shutil.copytree(found, where, symlinks=True, dirs_exist_ok=True)
            else:
                where.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(found, where / found.name if where.is_dir() else where)


def pairs(value: str) -> Iterator[tuple[str, str]]:
    """Names and values of an ENV or LABEL."""
    for word in shlex.split(value):
        name, _, text = word.partition("=")
        yield name, text


def expand(text: str, known: Mapping[str, str]) -> str:
    """`${NAME}` and `$NAME` as an engine reads them; unknown ones are empty."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: known.get(found[1], ""), text)


_UP = (
    "import fcntl,socket,struct;"
    "s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);"
    "fcntl.ioctl(s,0x8914,struct.pack('16sh',b'lo',0x1|0x40))"
)
"""SIOCSIFFLAGS with IFF_UP | IFF_RUNNING, where iproute2 is not installed."""
