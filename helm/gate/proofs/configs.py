"""Every file that the chart renders for the program, read by the program's own models."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import ValidationError

from tocsin.core.errors import SpecError
from tocsin.helm.gate.manifest import Manifest
from tocsin.helm.gate.proofs.pods import clusters, pods
from tocsin.helm.gate.render import Case
from tocsin.helm.gate.rule import Finding, items, sub

RULE = "contract.config"
WORKER = "tocsin-worker"


def check_configs(objects: Sequence[Manifest], case: Case) -> Iterator[Finding]:
    """Serve config, checker settings, chaos policy and experiment; and that they agree."""
    texts: dict[str, str] = {}
    for one in objects:
        if one.kind == "ConfigMap":
            for key, text in sub(one.body, "data").items():
                if key in _READERS:
                    texts[key] = str(text)
                    yield from _read(one, key, str(text))
        if one.kind == "RayService":
            text = str(sub(one.body, "spec").get("serveConfigV2", ""))
            yield from _read(one, "serve.yaml", text)
            texts["serveConfigV2"] = text
    yield from _one_service(objects, texts)
    if "policy.yaml" in texts:
        yield from _bounds(objects, texts["policy.yaml"], case)


def _read(one: Manifest, key: str, text: str) -> Iterator[Finding]:
    if problem := _problem(key, text):
        yield Finding(RULE, f"{one.where} {key}", problem, "what the program reads")


@lru_cache(maxsize=1024)
def _problem(key: str, text: str) -> str:
    try:
        _READERS[key](text)
    except (SpecError, ValidationError, yaml.YAMLError, ValueError) as error:
        return " ".join(str(error).split())[:300]
    return ""


def _one_service(objects: Sequence[Manifest], texts: Mapping[str, str]) -> Iterator[Finding]:
    """The serve config is one, wherever it stands, and holds the checker's settings."""
    where = "ConfigMap serve.yaml"
    serve = texts.get("serve.yaml", "")
    if not serve:
        yield Finding(RULE, where, "no such file in any ConfigMap", "the serve config")
        return
    both = [mapping_of(text) for text in (serve, texts.get("serveConfigV2", serve))]
    if both[0].get("proxy_location") != "EveryNode":
        # A worker is ready once its own proxy answers; on the head stands the gateway's.
        yield Finding(
            RULE, f"{where} proxy_location", f"{both[0].get('proxy_location')}", "EveryNode"
        )
    if both[0] != both[1]:
        yield Finding(RULE, where, "another content than serveConfigV2", "the same")
    deployments = {
        str(entry.get("name")): entry
        for application in items(both[0], "applications")
        for entry in items(application, "deployments")
    }
    settings = sub(deployments.get(WORKER, {}), "user_config")
    if settings != mapping_of(texts.get("checker.yaml", "")):
        found = "other settings than in user_config of tocsin-worker"
        yield Finding(RULE, "ConfigMap checker.yaml", found, "the same")
    if not settings:
        yield Finding(RULE, where, f"no user_config for {WORKER}", "the checker's settings")
    asked = sub(deployments.get(WORKER, {}), "ray_actor_options").get("num_gpus", 0)
    offered = any("gpu" in str(sub(c.body, "resources", "limits")) for c in _containers(objects))
    if asked and not offered:
        yield Finding(RULE, where, f"num_gpus {asked}, no pod with one", "GPUs in a worker group")


def _bounds(objects: Sequence[Manifest], text: str, case: Case) -> Iterator[Finding]:
    """The policy binds this release, its services and its lease, and no other."""
    policy = mapping_of(text)
    where = "ConfigMap policy.yaml"
    expected: dict[str, Any] = {"namespace": case.namespace, "release": case.release}
    for key, value in expected.items():
        if policy.get(key) != value:
            yield Finding(RULE, f"{where} {key}", f"{policy.get(key)!r}", f"{value!r}")
    leases = [one.name for one in objects if one.kind == "Lease"]
    lease = policy.get("lease_name", "")
    if policy.get("enabled") and lease and lease not in leases:
        yield Finding(RULE, f"{where} lease_name", f"{lease!r}", f"a rendered Lease: {leases}")
    if policy.get("enabled") and not lease:
        yield Finding(RULE, f"{where} lease_name", "none", "a lease: one run at a time")
    own, matchers = f'namespace="{case.namespace}"', policy.get("stop_matchers") or []
    if policy.get("stop_on_alert") and own not in matchers:
        needed = f"{own} among them: alerts of others end no run"
        yield Finding(RULE, f"{where} stop_matchers", f"{matchers}", needed)
    heads = [f"{one.name}-head-svc" for one, _ in clusters(objects)]
    if policy.get("enabled") and urlsplit(str(policy.get("serve_url"))).hostname not in heads:
        # The driver is let out to the head alone, where a gateway is in both topologies.
        found = f"{policy.get('serve_url')}"
        yield Finding(RULE, f"{where} serve_url", found, f"the one that may be attacked: {heads}")


def _containers(objects: Sequence[Manifest]) -> Iterator[Any]:
    for pod in pods(objects):
        yield from pod.containers()


@lru_cache(maxsize=1024)
def mapping_of(text: str) -> Mapping[str, Any]:
    """A YAML text as a mapping; an empty one where it is none."""
    try:
        found = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def _serve(text: str) -> None:
    from tocsin.ray_jobs.serve_file import parse_serve_config

    parse_serve_config(text, where="serve.yaml")


def _checker(text: str) -> None:
    from tocsin.checker.settings import CheckerSettings

    CheckerSettings.model_validate(yaml.safe_load(text))


def _policy(text: str) -> None:
    from tocsin.chaos.policy import ChaosPolicy

    ChaosPolicy.model_validate(yaml.safe_load(text))


def _experiment(text: str) -> None:
    from tocsin.chaos.spec_file import parse_experiment

    parse_experiment(yaml.safe_load(text), name="experiment.yaml")


_READERS: Mapping[str, Callable[[str], None]] = {
    "serve.yaml": _serve,
    "checker.yaml": _checker,
    "policy.yaml": _policy,
    "experiment.yaml": _experiment,
}
