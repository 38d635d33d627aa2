"""docs/kubernetes.md: each command that a reader copies is one that the chart and program take."""

import itertools
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from tests.checkout import ROOT
from tocsin.chaos.policy import ChaosPolicy, load_policy, objections
from tocsin.chaos.spec_file import load_experiment
from tocsin.core.errors import ChaosForbidden
from tocsin.helm.gate.custom import ray as custom_ray
from tocsin.helm.gate.findings import SHAPE, findings
from tocsin.helm.gate.manifest import Manifest, manifest
from tocsin.helm.gate.proofs.commands import objection
from tocsin.helm.gate.render import merged, render
from tocsin.helm.gate.tools import helm, kubectl
from tocsin.helm.values.page import defaults
from tocsin.ray_jobs.remote.kube_release import find_release
from tocsin.ray_jobs.remote.kubectl import Kubectl

PAGE = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
NAMESPACE, RELEASE = "tocsin-demo", "tocsin"
SERVICES_OF_KUBERAY = {"tocsin-head-svc", "tocsin-serve-svc"}


def _commands(*tools: str) -> list[list[str]]:
    """Every command of the page's consoles by one of these tools, continuation lines joined."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
    text = "\n".join(blocks).replace("\\\n", " ")
    lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")]
    parts = [part for line in lines for part in _piped(shlex.split(line))]
    return [words for words in parts if words[0] in tools]


def _piped(words: list[str]) -> list[list[str]]:
    """The commands of a line, parted at its pipes."""
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "|":
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


def _block(name: str) -> Any:
    """The YAML file of this name as the page shows it."""
    block = re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None, name
    return yaml.safe_load(block[1])


def _sets(words: list[str]) -> dict[str, Any]:
    """What a command's --set and --set-string say, as values."""
    values: dict[str, Any] = {}
    for flag, text in itertools.pairwise(words):
        if flag in ("--set", "--set-string"):
            path, _, given = text.partition("=")
            value: Any = given if flag == "--set-string" else yaml.safe_load(given)
            if given.startswith("{"):  # helm's way to write a list
                value = given.strip("{}").split(",")
            for name in reversed(path.split(".")):
                value = {name: value}
            values = merged(values, value)
    return values


@dataclass(frozen=True, slots=True)
class Step:
    """A command of the page, with the release's values as they stand after it."""

    words: list[str]
    values: Mapping[str, Any]
    labels: Mapping[str, str]
    """Labels that the namespace has been given so far."""


def _steps() -> Iterator[Step]:
    """The page's commands in their order; helm's change the values as helm itself would."""
    values: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for words in _commands("helm", "kubectl", "make"):
        if words[0] == "kubectl" and words[1] == "label":
            labels |= dict([words[-1].split("=", 1)])
        if words[0] == "helm" and words[1] != "test":
            # An upgrade begins with the chart's own values, unless it is told to keep the last.
            values = values if "--reset-then-reuse-values" in words else {}
            if "--values" in words:
                values = merged(values, _block(words[words.index("--values") + 1]))
            values = merged(values, _sets(words))
        yield Step(words, values, dict(labels))


ALL_STEPS = list(_steps())
STEPS = {
    " ".join(one.words): one.values
    for one in ALL_STEPS
    if one.words[0] == "helm" and one.words[1] != "test"
}
RUNS = [one for one in ALL_STEPS if any(word.startswith("KUBE_CONTEXT=") for word in one.words)]


@pytest.mark.parametrize("values", STEPS.values(), ids=[key[:60] for key in STEPS])
def test_each_helm_command_renders(values: dict[str, Any]) -> None:
    """In the page's order, each upon the last: what helm is given it takes, schema and all."""
    assert render(values, release=RELEASE, namespace=NAMESPACE)


@pytest.mark.parametrize("values", STEPS.values(), ids=[key[:60] for key in STEPS])
def test_no_command_forgets_what_an_earlier_one_set(values: dict[str, Any]) -> None:
    """Image and token of the install are those of every release that follows."""
    first = next(iter(STEPS.values()))
    for section in ("image", "token"):
        assert values[section] == first[section]


def test_a_command_that_forgets_is_seen() -> None:
    """Without the flag a release has what the command says and nothing more."""
    assert all("--reset-then-reuse-values" in step for step in list(STEPS)[1:])
    assert len(STEPS) > 5


class Cluster:
    """What `tocsin chaos run` asks of kubectl, answered from a render."""

    context, namespace = "demo", NAMESPACE

    def __init__(self, step: Step) -> None:
        """Install what the page has installed by then."""
        self._step = step
        self._made = render(step.values, release=RELEASE, namespace=NAMESPACE)

    def get(self, kind: str, *_: str) -> Mapping[str, Any]:
        """The namespace with the labels that it was given, or the release's objects of a kind."""
        if kind == "namespace":
            return {"metadata": {"labels": self._step.labels}}
        wanted = {"cronjobs.batch": "CronJob", "configmaps": "ConfigMap"}[kind]
        return {"items": [one.body for one in self._made if one.kind == wanted]}

    def policy(self, folder: Path) -> ChaosPolicy:
        """What the driver reads before it attacks."""
        held = [one.body["data"] for one in self._made if one.kind == "ConfigMap"]
        (text,) = [data["policy.yaml"] for data in held if "policy.yaml" in data]
        (folder / "policy.yaml").write_text(text, encoding="utf-8")
        return load_policy(folder / "policy.yaml")


@pytest.mark.parametrize("step", RUNS, ids=[" ".join(one.words[-2:]) for one in RUNS])
def test_each_run_is_allowed_when_the_page_starts_it(step: Step, tmp_path: Path) -> None:
    """By the program's own questions: the dry one where the release is dry, the rest once armed."""
    variables = dict(word.split("=", 1) for word in step.words if "=" in word)
    cluster = Cluster(step)
    dry_run = "DRY_RUN" in variables
    assert find_release(cast("Kubectl", cluster), RELEASE, dry_run=dry_run).name == RELEASE
    policy = cluster.policy(tmp_path)
    assert policy.dry_run is dry_run
    assert objections(policy, load_experiment(variables["SPEC"]), policy.serve_url) == ()


def test_the_page_runs_dry_then_in_earnest_then_everything() -> None:
    """The sequence that a reader follows."""
    told = [{word for word in one.words if re.match("SPEC|DRY_RUN", word)} for one in RUNS]
    assert told == [{"SPEC=smoke", "DRY_RUN=1"}, {"SPEC=smoke"}, {"SPEC=first-light"}]


def test_a_run_in_earnest_before_the_release_is_armed_is_forbidden() -> None:
    """What the page's first two commands once ended in."""
    with pytest.raises(ChaosForbidden, match="only plans"):
        find_release(cast("Kubectl", Cluster(RUNS[0])), RELEASE, dry_run=False)


def test_the_volume_of_the_reports_is_the_one_that_the_release_mounts() -> None:
    """A manifest that Kubernetes takes, of the name that the next command gives."""
    claim = _block("reports.yaml")
    assert [one for one in findings([manifest(claim)]) if one.rule in SHAPE] == []
    named = [values["chaos"].get("report") for values in STEPS.values() if "chaos" in values]
    assert {"claimName": claim["metadata"]["name"]} in named


def test_the_page_names_the_kuberay_that_the_gate_knows() -> None:
    """The fields that the chart writes are those of one version of its API."""
    (version,) = re.findall(r"KubeRay operator ([0-9.]+) or newer", PAGE)
    assert f"API reference of KubeRay {version} " in (custom_ray.__doc__ or "")


@pytest.mark.parametrize("readme", ["README.md", "README.zh.md"])
def test_what_a_readme_shows_of_kubernetes_works_as_it_stands(readme: str) -> None:
    """Install, then ask: no chaos run, which a fresh release forbids."""
    text = (ROOT / readme).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(one[2:]) for one in text.splitlines() if one.startswith("$ helm ")]
    install, test = lines
    assert render(_sets(install), release=RELEASE, namespace=NAMESPACE)
    assert "--create-namespace" in install
    assert test[:2] == ["helm", "test"]
    assert "KUBE_CONTEXT" not in "".join(one for one in text.splitlines() if one.startswith("$ "))


@pytest.fixture(scope="module")
def objects() -> list[Manifest]:
    """What the page's first command installs."""
    return render(next(iter(STEPS.values())), release=RELEASE, namespace=NAMESPACE)


def test_the_names_that_a_reader_types_are_those_of_the_release(objects: list[Manifest]) -> None:
    """`rayservice/tocsin`, the Services that KubeRay makes of it, the Secret of the token."""
    kinds = {(one.kind.lower(), one.name) for one in objects}
    said = re.findall(r"\b(rayservice|service)[/ ]([a-z-]+)", " ".join(map(" ".join, _kubectl())))
    assert said
    for kind, name in said:
        assert (kind, name) in kinds or name in SERVICES_OF_KUBERAY, (kind, name)
    (secret,) = [words[words.index("generic") + 1] for words in _kubectl() if "generic" in words]
    assert next(iter(STEPS.values()))["token"] == {"name": secret}


def _kubectl() -> list[list[str]]:
    return _commands("kubectl")


def test_kubectl_knows_every_flag() -> None:
    """The real kubectl prints its help for each command instead of complaining of one."""
    for words in _kubectl():
        done = subprocess.run(
            [kubectl(), *[word for word in words[1:] if "$(" not in word], "--help"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, (words, done.stderr)


def test_helm_knows_every_flag() -> None:
    """Likewise, as the commands stand and not as the render above reads them."""
    for words in _commands("helm"):
        done = subprocess.run([helm(), *words[1:], "--help"], capture_output=True, text=True)
        assert done.returncode == 0, (words, done.stderr)


def test_make_turns_each_line_into_a_command_that_the_program_takes() -> None:
    """`make -n` with the page's variables, read by the program's own parser."""
    seen = 0
    for words in _commands("make"):
        # A variable that the Makefile does not know would change nothing, silently.
        names = [word.partition("=")[0] for word in words if "=" in word]
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        assert all(f"$({name})" in makefile for name in names), words
        done = subprocess.run(
            ["make", "-n", "-o", ".venv/.installed", *words[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
        (line,) = [one for one in done.stdout.splitlines() if "/tocsin chaos run" in one]
        assert objection(("tocsin", *shlex.split(line)[1:])) == ""
        seen += 1
    assert seen >= 4


def test_the_program_takes_what_a_log_is_piped_into() -> None:
    """By the path at which a checkout has it."""
    (words,) = _commands(".venv/bin/tocsin")
    assert objection(("tocsin", *words[1:])) == ""


def test_every_value_that_the_page_names_exists() -> None:
    """A renamed value must not live on in the text."""
    known = defaults()
    sections = set(known)
    wrong = []
    for text in re.findall(r"`([a-zA-Z][\w.*=]+)`", PAGE):
        path = text.partition("=")[0].removesuffix(".*")
        if path.split(".")[0] in sections and ("." in text):
            here: Any = known
            for name in path.split("."):
                here = here.get(name) if isinstance(here, dict) else None
                if here is None:
                    wrong.append(text)
                    break
    assert wrong == []


def test_every_page_that_it_leads_to_is_there() -> None:
    """Links into docs/ and the tests that the page speaks of."""
    links = re.findall(r"\]\(([^)#:]+)", PAGE)
    paths = [ROOT / "docs" / link for link in links]
    paths += [ROOT / path for path in re.findall(r"`((?:tests|helm)/[\w/.]+)`", PAGE)]
    assert [str(path) for path in paths if not Path(path).exists()] == []
