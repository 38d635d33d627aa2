"""An experiment as a Chaos Toolkit document: `chaos validate` and `chaos run` take it as it is.

| ours | Chaos Toolkit |
| --- | --- |
| hypothesis, warm-up, `steady_state.probes` | `steady-state-hypothesis`, read before and after |
| the verdict of the whole run | a further probe of that hypothesis |
| workload | background action |
| each occurrence of a fault | action that returns the evidence that it fired |
| checks | closing probes of the method |
| heal | rollback; the control does the same where rollbacks are not played |
| `safety.abort`, `safety.max_duration` | control that interrupts the experiment |
"""

from typing import Any

from tocsin.chaos.case import Conclusion
from tocsin.chaos.contract import properties
from tocsin.chaos.ctk.embedded import EXTENSION
from tocsin.chaos.ctk.session import STORE, SYSTEM, VERDICT_NONE_YET
from tocsin.chaos.plan import Occurrence, make_plan
from tocsin.chaos.spec import Experiment, ProbeSpec
from tocsin.chaos.store import spec_document

_PROVIDER = "tocsin.chaos.ctk.provider"
_CONTROL = "tocsin.chaos.ctk.control"


def toolkit_document(spec: Experiment, factory: str, source: str = "") -> dict[str, Any]:
    """The experiment as JSON-safe data in the format of the Chaos Toolkit, version 1.0.0.

    Args:
        spec: as `spec_file.load_experiment` returns it.
        factory: `module:function` that makes the system under test (ctk.session.Factory), unless
            the environment names another one.
        source: what a person calls the experiment on the command line; empty: by its name.

    Raises:
        SpecError: a fault has no occurrence.
    """
    plan = make_plan(spec)
    families = sorted({fault.kind.partition(".")[0] for fault in spec.faults})
    return {
        "version": "1.0.0",
        "title": spec.name,
        "description": " ".join(spec.hypothesis.split()) or f"Chaos experiment {spec.name}.",
        "tags": ["tocsin", *families],
        "configuration": {
            SYSTEM: _environment("TOCSIN_CTK_SYSTEM", factory),
            STORE: _environment("TOCSIN_STORE", "store"),
        },
        "extensions": [
            {
                "name": EXTENSION,
                "source": source or spec.name,
                "plan_digest": plan.digest,
                "experiment": spec_document(spec),
            }
        ],
        "controls": [{"name": EXTENSION, "provider": {"type": "python", "module": _CONTROL}}],
        "steady-state-hypothesis": {
            "title": " ".join(spec.hypothesis.split()) or "Every answer is right.",
            "probes": [_verdict(), _baseline(spec), *map(_steady, spec.steady_state.probes)],
        },
        "method": [
            _workload(),
            *(_fault(one) for one in plan.occurrences),
            *(_check(name) for name in _checked(spec)),
        ],
        "rollbacks": [_activity("action", "heal all", "heal")],
    }


def _checked(spec: Experiment) -> tuple[str, ...]:
    """Ids of the properties that the run is judged by: those named, or all."""
    return tuple(check.id for check in spec.checks) or tuple(properties())


def _environment(key: str, default: str) -> dict[str, str]:
    return {"type": "env", "key": key, "default": default}


def _activity(kind: str, name: str, function: str, **arguments: Any) -> dict[str, Any]:
    provider: dict[str, Any] = {"type": "python", "module": _PROVIDER, "func": function}
    if arguments:
        provider["arguments"] = arguments
    return {"type": kind, "name": name, "provider": provider}


def _verdict() -> dict[str, Any]:
    # A list of two words would be read as the ends of a range.
    accepted = {"type": "regex", "pattern": f"^({VERDICT_NONE_YET}|{Conclusion.PASS})$"}
    return {**_activity("probe", "verdict", "verdict"), "tolerance": accepted}


def _baseline(spec: Experiment) -> dict[str, Any]:
    probe = _activity("probe", "right answers to the warm-up requests", "right_answers")
    return {**probe, "tolerance": spec.steady_state.warmup}


def _steady(probe: ProbeSpec) -> dict[str, Any]:
    limit = _activity("probe", f"{probe.name} is {probe.op} {probe.value:g}", "holds")
    limit["provider"]["arguments"] = {"op": probe.op, "limit": probe.value}
    reading = _activity("probe", probe.name, "steady", metric=probe.metric)
    return {**reading, "tolerance": limit}


def _workload() -> dict[str, Any]:
    return {**_activity("action", "workload", "workload"), "background": True}


def _fault(one: Occurrence) -> dict[str, Any]:
    return _activity("action", f"{one.id}: {one.kind}", "inject", occurrence=one.id)


def _check(property_id: str) -> dict[str, Any]:
    return _activity("probe", property_id, "check", property_id=property_id)
