"""The gate sees seeded faults: the operators make them, the score counts who was seen."""

import copy
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tocsin.helm.gate.mutants.meaning import meaning
from tocsin.helm.gate.mutants.operators import OPERATORS, mutants, other_default
from tocsin.helm.gate.mutants.score import TARGET, sample, score
from tocsin.helm.gate.render import CHART

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns of its own future

TEXT = """\
{{- if .Values.chaos.enabled }}
apiVersion: v1
kind: Role
metadata:
  name: {{ include "tocsin.serviceAccount.chaos" . | quote }}
rules:
  - apiGroups: [""]
    resources:
      - pods
    verbs:
      - get
spec:
  replicas: 1
  hostNetwork: false
  containerPort: 8000
  securityContext:
    runAsUser: 10001
  labels:
    app.kubernetes.io/instance: {{ .Release.Name }}
    {{- include "tocsin.selectorLabels" . | nindent 4 }}
  args:
    - --on
{{- fail "no" }}
  restartPolicy: Never
{{- end }}
"""


def one_template(folder: Path, text: str = TEXT) -> Path:
    """A chart with one template that every operator finds something in."""
    (folder / "templates").mkdir()
    (folder / "templates" / "object.yaml").write_text(text)
    (folder / "values.yaml").write_text("chaos:\n  enabled: false\n")
    return folder


def test_every_operator_makes_its_fault(tmp_path: Path) -> None:
    """Each changes the file, in one place."""
    found = mutants(one_template(tmp_path))
    made = Counter(one.operator for one in found)
    assert set(made) == {operator.__name__ for operator in (*OPERATORS, other_default)}
    for one in found:
        before = (tmp_path / one.path).read_text()
        assert one.text != before, one.name


def test_comments_are_left_alone(tmp_path: Path) -> None:
    """A fault in words is none."""
    text = "{{/* apiVersion: v1\nkind: X\n*/}}\n# name: y\nkind: Z\n"
    assert {one.line for one in mutants(one_template(tmp_path, text)) if "object" in one.path} == {
        5
    }


def test_a_sample_is_the_same_for_everybody_and_gives_each_operator_its_turn() -> None:
    """Seeded; another seed is another sample."""
    known = mutants(CHART)
    chosen = sample(known, 60)
    assert chosen == sample(known, 60)
    assert chosen != sample(known, 60, seed=21)
    assert len({one.operator for one in chosen}) == len(OPERATORS) + 1
    assert len(known) > 3000


POLICY: dict[str, Any] = {
    "spec": {"ingress": [{"ports": [{"port": 8000, "protocol": "TCP"}]}]},
}
RUN: dict[str, Any] = {
    "metadata": {"name": "demo-chaos-0123abcd"},
    "spec": {"entrypoint": "tocsin serve --config-sha256 " + "0f" * 32, "suspend": False},
}
DATA: dict[str, Any] = {"data": {"serve.yaml": 'name: "a"\n', "note": 'name: "a"'}}


@pytest.mark.parametrize(
    ("kind", "before", "path", "after", "is_same"),
    [
        ("NetworkPolicy", POLICY, "spec.ingress.0.ports.0", {"port": 8000}, True),
        ("NetworkPolicy", POLICY, "spec.ingress.0.ports.0.protocol", "UDP", False),
        ("NetworkPolicy", POLICY, "spec.ingress.0.ports.0", {"port": 8001}, False),
        ("Pod", {"limits": {"cpu": "2"}}, "limits.cpu", 2, True),
        ("Pod", {"limits": {"cpu": "2"}}, "limits.cpu", "2000m", True),
        ("Pod", {"limits": {"cpu": "2"}}, "limits.cpu", "2m", False),
        ("ConfigMap", DATA, "data.[serve.yaml]", "name: a\n", True),
        ("ConfigMap", DATA, "data.[serve.yaml]", "name: b\n", False),
        ("ConfigMap", DATA, "data.[serve.yaml]", "# SHA-256 of it\nname: a\n", False),
        ("ConfigMap", DATA, "data.note", "name: a", False),
        ("Job", RUN, "metadata.name", "demo-chaos-89abcdef", True),
        ("Job", RUN, "metadata.name", "demo-other-0123abcd", False),
        ("RayJob", RUN, "spec.entrypoint", "tocsin serve --config-sha256 " + "a1" * 32, True),
        ("RayJob", RUN, "spec.entrypoint", "tocsin serve --detach", False),
        ("ConfigMap", {"metadata": {"name": "a-0123abcd"}}, "metadata.name", "a-89abcdef", False),
    ],
)
def test_an_object_is_the_same_where_it_means_the_same(
    kind: str, before: dict[str, Any], path: str, after: Any, is_same: bool
) -> None:
    """Defaults of the API, ways to write a quantity, a text that is read as YAML, its digest."""
    changed = copy.deepcopy(before)
    place: Any = changed
    keys = [key.strip("[]") for key in re.findall(r"\[[^\]]*\]|[^.]+", path)]
    for key in keys[:-1]:
        place = place[int(key)] if isinstance(place, list) else place[key]
    place[int(keys[-1]) if isinstance(place, list) else keys[-1]] = after
    assert (meaning(kind, before) == meaning(kind, changed)) is is_same


def _seen(count: int) -> None:
    found = score(CHART, count)
    names = [one.mutant.name for one in found.survivors]
    assert found.share >= TARGET, names
    assert json.loads(json.dumps(found.report()))["caught"] == found.caught


@pytest.mark.slow
def test_the_gate_sees_what_is_seeded() -> None:
    """All of a dozen."""
    _seen(12)


@pytest.mark.release
def test_the_gate_sees_what_is_seeded_a_hundred_times() -> None:
    """At least 95 of 100 faults that change a rendered byte."""
    _seen(100)
