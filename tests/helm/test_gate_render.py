"""Rendering: one by one or many at once, the bytes are the same, and refusals are one line."""

import itertools
import shutil
from pathlib import Path

import pytest
import yaml

from tests.helm import test_gate_custom, test_gate_objects, test_gate_pods
from tocsin.core.errors import SpecError
from tocsin.helm.gate import matrix
from tocsin.helm.gate.choices import AXES, REST
from tocsin.helm.gate.findings import findings, rules
from tocsin.helm.gate.render import CHART, Case, lint, merged, render, render_many

# From every region of the matrix: both ends of the product, and rows of pairs.
SAMPLES = [name for name in matrix.cases() if name in ("defaults", "pairs-0", "pairs-7")]
SAMPLES += list(matrix.cases())[100:448:116]


def chart(folder: Path, template: str) -> Path:
    """A chart of one template, to see what rendering itself does."""
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: one\nversion: 1.0.0\n")
    (folder / "values.yaml").write_text("a: {b: 1, c: [1, 2], d: 0.5, e: 100000000, f: x}\n")
    (folder / "templates" / "one.yaml").write_text(template)
    return folder


@pytest.mark.parametrize("name", SAMPLES)
def test_many_at_once_are_the_bytes_of_one_by_one(name: str) -> None:
    """The quick way is a trick of templates; helm's own output is the judge of it."""
    case = matrix.cases()[name]
    alone = render(case.values)
    together = render_many([Case(), case])[1]
    assert sorted((one.source, one.text) for one in alone) == sorted(
        (one.source, one.text) for one in together.objects
    )
    assert together.notes.strip()


def test_many_are_told_apart_by_release_namespace_and_revision(tmp_path: Path) -> None:
    """Each case is its own release, as templates see it."""
    words = (
        "{{ .Release.Name }} {{ .Release.Namespace }} {{ .Release.IsUpgrade }} {{ .Chart.Name }}"
    )
    folder = chart(tmp_path / "one", f'said: "{words} {{{{ .Template.Name }}}}"\n')
    answers = render_many([Case(), Case({}, "other", "there", True)], chart=folder)
    said = [answer.objects[0].body["said"] for answer in answers]
    tail = "one one/templates/one.yaml"
    assert said == [f"demo tocsin-demo false {tail}", f"other there true {tail}"]
    upgrade = render({}, release="other", namespace="there", is_upgrade=True, chart=folder)
    assert upgrade[0].body["said"] == said[1]


@pytest.mark.parametrize(
    "values",
    [{}, {"a": {"b": 2}}, {"a": {"c": []}}, {"a": {"d": 3}}, {"a": {"g": {"h": 1}}}, {"a": None}],
)
def test_value_sets_are_merged_as_helm_merges_them(
    tmp_path: Path, values: dict[str, object]
) -> None:
    """Mappings key by key, lists whole, null takes away; numbers keep their form."""
    folder = chart(tmp_path / "one", "values: {{ .Values | toJson }}\n")
    alone = render(values, chart=folder)[0].body["values"]
    base = yaml.safe_load((folder / "values.yaml").read_text())
    together = render_many([Case(values)], chart=folder)[0].objects[0].body["values"]
    assert together | {"global": {}} == alone | {"global": {}}
    assert merged(base, values) == {key: alone[key] for key in alone if key != "global"}


def test_versions_and_kinds_of_the_cluster_reach_the_templates(tmp_path: Path) -> None:
    """Both ways of rendering say the same about the cluster."""
    template = (
        'version: "{{ .Capabilities.KubeVersion.Minor }}"\n'
        'has: {{ .Capabilities.APIVersions.Has "ray.io/v1/RayService" }}\n'
    )
    folder = chart(tmp_path / "one", template)
    assert render({}, chart=folder)[0].body == {"version": "33", "has": True}
    other = {"kube_version": "1.28.0", "api_versions": (), "chart": folder}
    assert render({}, **other)[0].body == {"version": "28", "has": False}  # type: ignore[arg-type]
    many = render_many([Case()], **other)  # type: ignore[arg-type]
    assert many[0].objects[0].body == {"version": "28", "has": False}


def test_a_refusal_is_one_line_of_helms_own_words(tmp_path: Path) -> None:
    """A guard's words come through, alone and among many; so do the schema's."""
    folder = chart(tmp_path / "one", '{{ fail "no room\\nat the inn" }}\n')
    for refused in (lambda: render({}, chart=folder), lambda: render_many([Case()], chart=folder)):
        with pytest.raises(SpecError, match=r"no room at the inn") as caught:
            refused()
        assert "\n" not in str(caught.value)
    with pytest.raises(SpecError, match=r"topology"):
        render({"topology": "servce"})


def test_what_helm_prints_in_between_is_found_at_its_template(tmp_path: Path) -> None:
    """A template with several documents and a comment gives the objects, each with its source."""
    folder = chart(tmp_path / "one", "# nothing\n---\na: 1\n---\n---\nb: 2\n")
    assert [(one.source, one.body) for one in render({}, chart=folder)] == [
        ("templates/one.yaml", {"a": 1}),
        ("templates/one.yaml", {"b": 2}),
    ]
    assert [one.body for one in render_many([Case()], chart=folder)[0].objects] == [
        {"a": 1},
        {"b": 2},
    ]


def test_lint_has_nothing_against_the_chart_and_something_against_a_broken_one(
    tmp_path: Path,
) -> None:
    """`helm lint --strict` is quiet on the defaults; a bad icon or value is a complaint."""
    assert lint({}) == ()
    assert any("topology" in word for word in lint({"topology": "servce"}))
    broken = tmp_path / "chart"
    shutil.copytree(CHART, broken)
    (broken / "templates" / "broken.yaml").write_text("a: b: c\n")
    assert any("broken.yaml" in word for word in lint({}, chart=broken))


def test_the_matrix_holds_the_whole_product_and_every_pair() -> None:
    """No combination of the axes that can be made is left out, and no two choices never meet."""
    cases = matrix.cases()
    assert len(cases) >= 400
    wanted = sum(
        1
        for picked in itertools.product(*AXES.values())
        if not any(one.needs - {mark for each in picked for mark in each.gives} for one in picked)
    )
    assert sum("topology=" in name for name in cases) + 1 == wanted  # the first is "defaults"
    assert len({str(case.values) for case in cases.values()}) == len(cases)
    rows = [case.values for name, case in cases.items() if name.startswith("pairs-")]
    for axis in REST.values():
        for choice in axis:
            assert any(_holds(values, choice.values) for values in rows), choice.name


def _holds(values: object, part: object) -> bool:
    if isinstance(part, dict) and isinstance(values, dict):
        return all(_holds(values.get(key), inner) for key, inner in part.items())
    return values == part or not part


@pytest.mark.parametrize("kube_version", ["1.28.0", "1.37.1"])
def test_the_chart_renders_the_same_for_every_cluster(kube_version: str) -> None:
    """Neither the version nor the kinds a cluster claims to have change a byte of any object."""
    cases = [case for name, case in matrix.cases().items() if name.startswith("pairs-")]
    cases = [case for case in cases if "admissionPolicy" not in str(case.values)]
    here = render_many(cases)
    there = render_many(cases, kube_version=kube_version, api_versions=())
    assert [one.objects for one in there] == [one.objects for one in here]


def test_a_sample_of_the_matrix_has_nothing_against_it() -> None:
    """The whole matrix is for the gate; here a few of its renders are clean, so the gate can be."""
    for name, found in matrix.renders(names=SAMPLES).items():
        assert [str(finding) for finding in findings(found.objects)] == [], name


def test_each_rule_says_what_it_demands_and_is_broken_in_some_test() -> None:
    """A rule without a mutant could be one that finds nothing."""
    rows = test_gate_pods.ROWS + test_gate_objects.ROWS + test_gate_custom.ROWS
    broken = {row[0] for row in rows} | {"metadata.text"}
    assert {rule.id for rule in rules()} == broken
    assert all(rule.says.endswith(".") for rule in rules())


def test_no_cases_are_no_renders() -> None:
    """Not a complaint of helm's about a template without output."""
    assert render_many([]) == []
