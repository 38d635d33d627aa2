"""A Lease: one chaos run at a time attacks a release; who loses it stops."""

import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from tocsin.core.clock import Clock
from tocsin.core.errors import ChaosForbidden, TocsinError
from tocsin.ray_jobs.kube.api import KubeApi, KubeConflict

DURATION_S = 30
_RENEW_S = DURATION_S / 3
_LOST_S = DURATION_S * 0.75
"""Not renewed for so long, a run stops: it heals before somebody else may begin."""
_LOOK_S = 2.0
_LONG_AGO_S = 10 * DURATION_S
"""Older than this, a lease is over whatever the clocks of two machines say."""


class KubeLease:
    """Implements `core.guard.Guard`: the run may go on as long as it holds the lease.

    Args:
        holder: who we are, for those who find it taken.
        say: told when somebody else's lease has to run out first.
    """

    def __init__(
        self,
        api: KubeApi,
        namespace: str,
        name: str,
        holder: str,
        clock: Clock,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Not held yet."""
        self._api, self._name, self._holder, self._clock, self._say = api, name, holder, clock, say
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._namespace = namespace
        self._renewed_ns = 0
        self._lost = ""
        self._missing = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(self) -> None:
        """Take it, or wait for the end of one that nobody renews any more.

        Raises:
            ChaosForbidden: another run holds it.
            TocsinError: the API server cannot be asked.
        """
        found: Mapping[str, Any] | None = self._api.get(f"{self._folder}/{self._name}")
        other = _holder(found)
        if other and other != self._holder:
            found = self._outlived(found or {}, other)
        try:
            self._write(found, takes=True)
        except KubeConflict:
            raise ChaosForbidden(
                f"lease {self._name}: another run was quicker, expected to be the only one; wait "
                "for its end"
            ) from None

    def keep(self) -> None:
        """Renew it from now on, in a thread of its own."""
        self._thread = threading.Thread(target=self._renew_for_ever, daemon=True)
        self._thread.start()

    def why_not(self) -> str:
        """Why it is not ours any more; empty: it is."""
        if self._lost:
            return self._lost
        silent_s = (self._clock.now_ns() - self._renewed_ns) / 1e9
        if silent_s > _LOST_S:
            return (
                f"lease {self._name}: not renewed for {silent_s:.0f} s, expected every "
                f"{_RENEW_S:.0f} s ({self._missing or 'no answer'})"
            )
        return ""

    def renew(self) -> None:
        """One renewal; a lease that another one holds is lost for good."""
        try:
            found = self._api.get(f"{self._folder}/{self._name}")
            other = _holder(found)
            if found is None:
                self._lost = (
                    f"lease {self._name}: was deleted, expected {self._holder} to hold it; the "
                    "release was taken away, or its chaos switched off"
                )
                return
            if other != self._holder:
                self._lost = (
                    f"lease {self._name}: now held by {other or 'nobody'}, expected "
                    f"{self._holder}; another run attacks this release"
                )
                return
            self._write(found, takes=False)
        except TocsinError as error:
            self._missing = str(error)  # the next one may succeed; `why_not` counts the seconds

    def release(self) -> None:
        """Give it back for the next run; what cannot be given back runs out by itself."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_RENEW_S)
        try:
            found = self._api.get(f"{self._folder}/{self._name}")
            if found is not None and _holder(found) == self._holder:
                spec = {**_spec(found), "leaseDurationSeconds": 1}
                del spec["holderIdentity"]
                self._api.put(f"{self._folder}/{self._name}", {**found, "spec": spec})
        except TocsinError as error:
            self._say(f"{error} (the lease runs out in {DURATION_S} s)")

    def _outlived(self, found: Mapping[str, Any], other: str) -> Mapping[str, Any] | None:
        """The lease of a holder who does not renew it: it has not changed for its whole time.

        Only our own clock is asked: the time in it is another machine's.
        """
        spec = _spec(found)
        lasts_s = float(spec.get("leaseDurationSeconds") or DURATION_S)
        if self._clock.wall_s() - _wall_s(spec.get("renewTime")) > max(_LONG_AGO_S, 10 * lasts_s):
            return found
        self._say(
            f"lease {self._name} is held by {other}; looking for up to {lasts_s:g} s whether it "
            "is renewed"
        )
        until_ns = self._clock.now_ns() + int(lasts_s * 1e9)
        while self._clock.now_ns() < until_ns:
            self._clock.sleep(_LOOK_S)
            now = self._api.get(f"{self._folder}/{self._name}")
            if not _holder(now):
                return now
            if _spec(now or {}) != spec:
                raise ChaosForbidden(
                    f"lease {self._name}: held by {_holder(now)}, who renews it; expected to be "
                    "the only run against this release; wait for the end of the other one"
                )
            found = now or found
        return found

    def _write(self, found: Mapping[str, Any] | None, *, takes: bool) -> None:
        """Write our name and the time into the lease that was read."""
        now = datetime.fromtimestamp(self._clock.wall_s(), UTC).isoformat(timespec="microseconds")
        began_ns = self._clock.now_ns()
        before = _spec(found or {})
        spec = {
            **before,
            "holderIdentity": self._holder,
            "leaseDurationSeconds": DURATION_S,
            "renewTime": now.replace("+00:00", "Z"),
        }
        if takes:
            spec["acquireTime"] = spec["renewTime"]
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        if found is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            self._api.post(self._folder, {**kind, "metadata": metadata, "spec": spec})
        else:
            # `resourceVersion` travels with it: a lease that changed meanwhile is not overwritten.
            self._api.put(f"{self._folder}/{self._name}", {**found, "spec": spec})
        self._renewed_ns = began_ns

    def _renew_for_ever(self) -> None:
        while not self._stop.wait(_RENEW_S):
            self.renew()


def _spec(found: Mapping[str, Any]) -> dict[str, Any]:
    spec = found.get("spec")
    return dict(spec) if isinstance(spec, dict) else {}


def _holder(found: Mapping[str, Any] | None) -> str:
    return str(_spec(found or {}).get("holderIdentity") or "")


def _wall_s(text: object) -> float:
    """Seconds since the epoch of a time as the API writes it; 0 for none."""
    try:
        return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
