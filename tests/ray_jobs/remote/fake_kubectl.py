"""A kubectl that needs no cluster: it reads a folder, and a Job it makes is a process of ours.

`$FAKE_KUBE/script.json` says how the cluster behaves; every call is in `calls.jsonl`. A Job whose
script has no `pods` is run for real: the container's command line, with the manifest's variables,
by a small kubelet (this file again), whose log lines carry times as a container runtime's do.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["FAKE_KUBE"])
SCRIPT: dict[str, Any] = json.loads((ROOT / "script.json").read_text())


def main(words: list[str]) -> int:
    """One call."""
    context = _option(words, "--context")
    _option(words, "--namespace")
    words[:] = [word for word in words if not word.startswith("--request-timeout")]
    with (ROOT / "calls.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    if context != "demo":
        return _fail(f'error: context "{context}" does not exist')
    if SCRIPT.get("down"):
        return _fail("The connection to the server 127.0.0.1:1 was refused - wrong host or port?")
    asked = " ".join(words)
    for beginning in SCRIPT.get("forbidden", []):
        if asked.startswith(beginning):
            return _fail(
                f'Error from server (Forbidden): {beginning} is forbidden: User "anna" cannot '
                'do that in the namespace "prod"'
            )
    return {"get": _get, "create": _create, "logs": _logs, "delete": _delete}[words[0]](words[1:])


def _get(words: list[str]) -> int:
    selector = _option(words, "-l")
    _option(words, "-o")
    field = _option(words, "--field-selector")
    kind = words[0]
    if len(words) > 1:
        found = _read(kind, words[1])
        if found is None:
            return _fail(f'Error from server (NotFound): {kind} "{words[1]}" not found')
        print(json.dumps(found))
        return 0
    if kind == "pods" and "pods" in SCRIPT:
        scripted = _scripted_pods()
        if scripted is None:
            return _fail("The connection to the server 127.0.0.1:1 was refused")
        items = scripted
    elif kind == "events":
        assert field.startswith("involvedObject.kind=Job,involvedObject.name=")
        items = SCRIPT.get("events", [])
    else:
        items = [json.loads(one.read_text()) for one in sorted((ROOT / kind).glob("*.json"))]
        wanted = dict(pair.split("=") for pair in selector.split(",") if pair)
        items = [
            one for one in items if wanted.items() <= (one["metadata"].get("labels") or {}).items()
        ]
    print(json.dumps({"kind": "List", "items": items}))
    return 0


def _scripted_pods() -> list[dict[str, Any]] | None:
    """The next of the script's readings, the last one stays; None: nobody answers."""
    counter = ROOT / "reading"
    number = int(counter.read_text()) if counter.exists() else 0
    counter.write_text(str(number + 1))
    readings = SCRIPT["pods"]
    status = readings[min(number, len(readings) - 1)]
    if status == "gone":
        for path in (ROOT / "job").glob("*.json"):
            path.unlink()
        return []
    if status == "down":
        return None
    if status is None:
        return []
    containers = [{"name": "chaos", "resources": {"limits": {"memory": "2Gi"}}}]
    return [{"metadata": {"name": "pod-1"}, "spec": {"containers": containers}, "status": status}]


def _create(words: list[str]) -> int:
    assert words[:2] == ["-f", "-"], words
    job = json.load(sys.stdin)
    name = job["metadata"]["name"]
    if SCRIPT.get("create_fails"):
        return _fail(SCRIPT["create_fails"])
    _write("job", name, job)
    (ROOT / "created.json").write_text(json.dumps(job))
    print(json.dumps(job))
    sys.stdout.flush()
    if "pods" not in SCRIPT:
        subprocess.Popen(
            [sys.executable, __file__, "--kubelet", name],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a caller waits until nobody holds its pipe
        )
    return 0


def _delete(words: list[str]) -> int:
    assert words[0] == "job"
    (ROOT / "job" / f"{words[1]}.json").unlink(missing_ok=True)
    (ROOT / "deleted").write_text(words[1])
    return 0


def _logs(words: list[str]) -> int:
    """What a runtime logged since a whole second; `-f`: and goes on logging, until it is cut."""
    since = next((w.partition("=")[2] for w in words if w.startswith("--since-time=")), "")
    stamps = "--timestamps" in words
    path = ROOT / "pod-1.log"
    if SCRIPT.get("logs_fail"):
        return _fail(SCRIPT["logs_fail"])
    streams = ROOT / "streams"
    number = int(streams.read_text()) if streams.exists() else 0
    cut_after = None
    if "-f" in words:
        streams.write_text(str(number + 1))
        cuts = SCRIPT.get("cuts", [])
        cut_after = cuts[number] if number < len(cuts) else None
    said = 0
    with path.open(encoding="utf-8") as file:
        while True:
            line = file.readline()
            if not line:
                if "-f" not in words or _is_over():
                    return 0
                time.sleep(0.02)
                continue
            if since and line[:19] < since[:19]:
                continue
            if cut_after is not None and said >= cut_after:
                sys.stdout.write(line[: len(line) // 2])  # in the middle of a line
                sys.stdout.flush()
                return _fail("error: unexpected EOF")
            sys.stdout.write(line if stamps else line.partition(" ")[2])
            sys.stdout.flush()
            said += 1


def _is_over() -> bool:
    if "pods" in SCRIPT:
        return True
    pod = _read("pods", "pod-1")
    return pod is None or "terminated" in pod["status"]["containerStatuses"][0]["state"]


def kubelet(name: str) -> int:
    """Run a Job's container as a process of this machine."""
    job = _read("job", name)
    assert job is not None
    pod = job["spec"]["template"]
    container = pod["spec"]["containers"][0]
    labels = {**(pod.get("metadata") or {}).get("labels", {}), "job-name": name}

    def status(phase: str, **state: Any) -> None:
        _write(
            "pods",
            "pod-1",
            {
                "metadata": {"name": "pod-1", "labels": labels},
                "spec": pod["spec"],
                "status": {
                    "phase": phase,
                    "containerStatuses": [{"name": container["name"], "state": state}],
                },
            },
        )

    log = ROOT / "pod-1.log"
    log.touch()
    status("Pending", waiting={"reason": "ContainerCreating"})
    variables = {one["name"]: one.get("value", "") for one in container.get("env", [])}
    process = subprocess.Popen(
        [*container["command"], *container.get("args", [])],
        env={**os.environ, **variables},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    (ROOT / "driver.pid").write_text(str(process.pid))
    status("Running", running={"startedAt": "now"})
    lock = threading.Lock()
    with log.open("a", encoding="utf-8") as file:

        def write(stream: Any) -> None:
            for line in stream:
                with lock:
                    nanoseconds = time.time_ns()
                    at = datetime.fromtimestamp(nanoseconds // 10**9, UTC)
                    file.write(f"{at:%Y-%m-%dT%H:%M:%S}.{nanoseconds % 10**9:09d}Z {line}")
                    file.flush()

        writers = [
            threading.Thread(target=write, args=(one,)) for one in (process.stdout, process.stderr)
        ]
        for one in writers:
            one.start()
        while process.poll() is None:
            if (ROOT / "deleted").exists():
                process.send_signal(signal.SIGTERM)
                process.wait()
            time.sleep(0.05)
        for one in writers:
            one.join()
    code = process.returncode
    reason = "Completed" if code == 0 else "Error"
    status("Succeeded" if code == 0 else "Failed", terminated={"exitCode": code, "reason": reason})
    if (ROOT / "deleted").exists():
        (ROOT / "pods" / "pod-1.json").unlink()
    return 0


def _option(words: list[str], name: str) -> str:
    if name not in words:
        return ""
    place = words.index(name)
    value = words[place + 1]
    del words[place : place + 2]
    return value


def _read(kind: str, name: str) -> dict[str, Any] | None:
    path = ROOT / kind / f"{name}.json"
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    return found


def _write(kind: str, name: str, document: Any) -> None:
    (ROOT / kind).mkdir(exist_ok=True)
    part = ROOT / kind / f".{name}.part"
    part.write_text(json.dumps(document))
    part.replace(ROOT / kind / f"{name}.json")


def _fail(message: str) -> int:
    sys.stderr.write(message + "\n")
    return 1


if __name__ == "__main__":
    if sys.argv[1] == "--kubelet":
        sys.exit(kubelet(sys.argv[2]))
    sys.exit(main(sys.argv[1:]))
