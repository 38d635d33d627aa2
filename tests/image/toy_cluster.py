"""Pods as Kubernetes and KubeRay would run them, with the kernel's own means and no cluster.

Each pod has a network, mounts and process numbers of its own; its containers run from the image
that tests/image/ builds, as the image's user. Services are lines in /etc/hosts. What only a cluster
can do is not done here: schedule, enforce a NetworkPolicy, restart, admit.
"""

import json
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.image.sandbox import BASE, PYTHON, Sandbox

_SUBNET = "10.97.0"
_UNITS = {"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}


@dataclass
class Pod:
    """One running container.

    Attributes:
        address: of its network.
        process: what started it; its end is the container's.
        log: what it has printed so far.
        lasting: whether it is to run as long as the cluster does.
    """

    name: str
    address: str
    process: "subprocess.Popen[bytes]"
    log: Path
    lasting: bool = False

    def text(self) -> str:
        """All that it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait(self, limit_s: float) -> int:
        """Its exit code."""
        return self.process.wait(limit_s)


@dataclass
class ToyCluster:
    """A bridge with pods on it; as a context manager it takes everything away again.

    Args:
        image: built.
        folder: an empty one.
        configs: ConfigMap name → file name → text.
        services: Service name → address.
        environment: variables that every container gets besides, for what a cluster would have.
    """

    image: Sandbox
    folder: Path
    namespace: str
    configs: Mapping[str, Mapping[str, str]]
    services: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    def __enter__(self) -> "ToyCluster":
        """Make the bridge; the test itself stands at its first address."""
        self._host = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        self._networks = [self._host]
        _until_apart(self._host)
        self._ip("link set lo up")
        self._ip("link add pods type bridge")
        self._ip(f"addr add {_SUBNET}.1/24 dev pods")
        self._ip("link set pods up")
        return self

    def __exit__(self, *error: object) -> None:
        """End the pods, then their networks."""
        for pod in self.pods:
            pod.process.kill()
            pod.process.wait()
        for network in reversed(self._networks):
            network.kill()
            network.wait()
            if network.stdout is not None:
                network.stdout.close()

    def address(self, last: int) -> str:
        """An address on the bridge."""
        return f"{_SUBNET}.{last}"

    def start(
        self,
        name: str,
        last: int,
        spec: Mapping[str, Any],
        command: Sequence[str] = (),
        labels: Mapping[str, str] = {},
    ) -> Pod:
        """Start a pod's first container.

        Args:
            last: last number of its address.
            spec: of the pod, as rendered.
            command: instead of the container's own; KubeRay writes one for Ray's.
        """
        container = spec["containers"][0]
        network = self._network(name, last)
        log = self.folder / f"{name}.log"
        words = command or [*container.get("command", self.image.entrypoint)]
        if not command:
            words += container.get("args", [])
        variables = self._variables(name, last, container, labels)
        script = "\n".join(["set -e", *self._mounts(name, spec, container), _START])
        setting = [f"{key}={value}" for key, value in variables.items()]
        inside = ["nsenter", "-t", str(network.pid), "-n", "unshare", "--mount", "--pid", "--fork"]
        inside += ["--kill-child", "--mount-proc", "--propagation", "private"]
        user = spec["securityContext"]
        drop = [f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", "--clear-groups"]
        drop += ["--no-new-privs", "--bounding-set=-all"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*inside, "bash", "-c", script, "pod", *drop, "env", "-i", *setting, *words],
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        pod = Pod(name, self.address(last), process, log, lasting=bool(command))
        self.pods.append(pod)
        return pod

    def get(self, url: str, body: Any = None, *, method: str = "", limit_s: float = 90) -> Any:
        """Ask a pod from the bridge; the parsed answer, or the text where it is no JSON.

        Raises:
            ConnectionError: nobody answered, or not with 2xx.
        """
        data = [json.dumps(body)] if body is not None else []
        words = [sys.executable, "-c", _ASK, method or ("PUT" if data else "GET"), url, *data]
        done = subprocess.run(self._there(words), capture_output=True, text=True, timeout=limit_s)
        if done.returncode:
            raise ConnectionError(done.stderr.strip().splitlines()[-1])
        try:
            return json.loads(done.stdout)
        except json.JSONDecodeError:
            return done.stdout

    def until(self, url: str, limit_s: float, pod: Pod) -> Any:
        """Ask again and again, as a probe does, as long as the pod lives."""
        end_s = time.monotonic() + limit_s
        while True:
            try:
                return self.get(url)
            except ConnectionError as error:
                for one in (pod, *(one for one in self.pods if one.lasting)):
                    assert one.process.poll() is None, f"{one.name} ended:\n{one.text()[-3000:]}"
                if time.monotonic() > end_s:
                    raise AssertionError(f"{url}: {error}\n{pod.text()[-3000:]}") from error
            time.sleep(0.5)

    def background(self, words: Sequence[str]) -> "subprocess.Popen[bytes]":
        """A process of the test's own on the bridge; ends with the cluster."""
        process = subprocess.Popen(self._there(words), stdout=subprocess.PIPE)
        self._networks.append(process)
        return process

    def _there(self, words: Sequence[str]) -> list[str]:
        return ["nsenter", "-t", str(self._host.pid), "-n", *words]

    def _ip(self, words: str) -> None:
        subprocess.run(self._there(["ip", *words.split()]), check=True)

    def _network(self, name: str, last: int) -> "subprocess.Popen[bytes]":
        network = subprocess.Popen(self._there(["unshare", "--net", "sleep", "infinity"]))
        self._networks.append(network)
        _until_apart(network, self._host)
        self._ip(f"link add p{last} type veth peer name eth0 netns {network.pid}")
        self._ip(f"link set p{last} master pods up")
        inside = ["nsenter", "-t", str(network.pid), "-n", "ip"]
        for words in (
            "link set lo up",
            f"addr add {self.address(last)}/24 dev eth0",
            "link set eth0 up",
            f"route add default via {_SUBNET}.1",
        ):
            subprocess.run([*inside, *words.split()], check=True)
        return network

    def _mounts(
        self, name: str, spec: Mapping[str, Any], container: Mapping[str, Any]
    ) -> list[str]:
        """The image, then the pod's volumes, then /tmp: the folders themselves may lie in there."""
        image = [(self.image.path(place), place) for place in ("/opt/tocsin", "/etc", BASE)]
        image.append((Path(sys.base_prefix), PYTHON))
        hosts = self.folder / f"{name}.hosts"
        known = [f"{address} {service}" for service, address in self.services.items()]
        hosts.write_text("\n".join(["127.0.0.1 localhost", *known]) + "\n", encoding="utf-8")
        volumes = {one["name"]: one for one in spec.get("volumes", [])}
        binds, memory = [*image, (hosts, "/etc/hosts")], []
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            source = self.folder / name / mount["name"]
            where = mount["mountPath"]
            if self.image.path(where) != Path(where):
                self.image.path(where).mkdir(parents=True, exist_ok=True)  # as an engine does
            if volume.get("emptyDir", {}).get("medium") == "Memory":
                size = in_bytes(volume["emptyDir"]["sizeLimit"])
                memory.append(f"mount -t tmpfs -o size={size},mode=1777 tmpfs {where}")
                continue
            source.mkdir(parents=True)
            source.chmod(0o2777)  # an emptyDir with fsGroup
            if "configMap" in volume:
                for file, text in self.configs[volume["configMap"]["name"]].items():
                    (source / file).write_text(text, encoding="utf-8")
            binds.append((source, where))
        # A volume may lie within another one; /tmp comes last, for all that is bound may be in it.
        binds.sort(key=lambda pair: (pair[1] == "/tmp", pair[1]))
        lines = []
        for source, where in binds:
            inside = any(where.startswith(f"{other}/") for _, other in binds)
            lines += [f"mkdir -p {where}"] if inside and source.is_dir() else []
            lines.append(f"mount --bind {source} {where}")
        return [*lines, "mount -o remount,bind,ro /etc", *memory]

    def _variables(
        self, name: str, last: int, container: Mapping[str, Any], labels: Mapping[str, str]
    ) -> dict[str, str]:
        fields = {
            "metadata.name": name,
            "metadata.namespace": self.namespace,
            "status.podIP": self.address(last),
            **{f"metadata.labels['{key}']": value for key, value in labels.items()},
        }
        found = {"LD_LIBRARY_PATH": f"{PYTHON}/lib", **self.image.environment, **self.environment}
        for one in container.get("env", []):
            source = one.get("valueFrom", {}).get("fieldRef", {})
            text = fields[source["fieldPath"]] if source else one["value"]
            found[one["name"]] = re.sub(r"\$\((\w+)\)", lambda m: found.get(m[1], m[0]), text)
        return found


def ray_command(group: Mapping[str, Any], head_service: str, *, head: bool) -> list[str]:
    """What KubeRay (1.7) starts a Ray container with: its parameters, and what it adds to them."""
    parameters = dict(group["rayStartParams"])
    resources = group["template"]["spec"]["containers"][0]["resources"]
    cores = resources.get("limits", {}).get("cpu") or resources["requests"]["cpu"]
    parameters.setdefault("num-cpus", str(cores))
    parameters.setdefault("memory", str(in_bytes(resources["limits"]["memory"])))
    parameters.setdefault("metrics-export-port", "8080")
    parameters.setdefault("dashboard-agent-listen-port", "52365")
    if not head:
        parameters.setdefault("address", f"{head_service}:6379")
    flags = " ".join(f"--{key}={value}" for key, value in sorted(parameters.items()))
    start = f"ray start {'--head ' if head else ''}{flags} --block"
    return ["/bin/bash", "-c", "--", f"ulimit -n 65536; {start}"]


def in_bytes(quantity: str) -> int:
    """Bytes of a Kubernetes quantity with a binary unit."""
    return int(float(quantity[:-2]) * _UNITS[quantity[-2:]])


def _until_apart(process: "subprocess.Popen[bytes]", *others: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has its own network: what follows is put into it by its number."""
    # On its way it is first in the test's own network, then in that of the bridge.
    theirs = {Path(f"/proc/{one}/ns/net").readlink() for one in ("self", *(o.pid for o in others))}
    for _ in range(500):
        if Path(f"/proc/{process.pid}/ns/net").readlink() not in theirs:
            return
        time.sleep(0.01)
    raise AssertionError("the process did not get a network of its own within 5 s")


_START = 'cd /var/lib/tocsin 2>/dev/null || cd /\nexec setpriv "$@"'

_ASK = """
import sys, urllib.request
method, url, *data = sys.argv[1:]
body = data[0].encode() if data else None
head = {"content-type": "application/json"} if data else {}
request = urllib.request.Request(url, body, head, method=method)
try:
    sys.stdout.write(urllib.request.urlopen(request, timeout=60).read().decode())
except OSError as error:
    more = error.read().decode()[-800:] if hasattr(error, "read") else ""
    sys.exit(f"{error} {more}".replace(chr(10), " "))
"""
