"""Wrong values are found out where a schema is open; dead values where a template ignores one."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.helm.gate_charts import SCHEMA, TEMPLATE, chart
from tocsin.helm.gate.proofs import contradictions
from tocsin.helm.gate.proofs.contexts import contexts
from tocsin.helm.gate.proofs.leaves import leaves, placed
from tocsin.helm.gate.proofs.live_values import Garden, Stage, live_values
from tocsin.helm.gate.proofs.many import texts
from tocsin.helm.gate.proofs.neighbours import neighbours
from tocsin.helm.gate.proofs.schema_answers import schema_answers
from tocsin.helm.gate.proofs.wrong_values import misspelling, packed, wrong_values, wrongs
from tocsin.helm.gate.render import CHART, Case, render

ON = {"deep": {"on": True, "list": [{"key": "a"}]}}


def opened(*path: str, **change: Any) -> dict[str, Any]:
    """The small chart's schema with one object of it changed."""
    schema = copy.deepcopy(SCHEMA)
    here = schema
    for part in path:
        here = here["properties"][part] if part != "[]" else here["items"]
    here.update(change)
    return schema


def test_a_closed_schema_lets_nothing_wrong_through(tmp_path: Path) -> None:
    """Misspelt, null, of another type, out of range and out of shape, at every level."""
    proof = wrong_values(chart(tmp_path))
    assert proof.findings == ()
    assert proof.figures["accepted"] == 0
    assert all(proof.figures[kind] for kind in ("misspelt", "null", "type", "enum", "range"))


@pytest.mark.parametrize(
    ("schema", "rule", "where"),
    [
        (opened(additionalProperties=True), "values.misspelt", f"values {misspelling('mode')}"),
        (
            opened("deep", additionalProperties=True),
            "values.misspelt",
            f"values deep.{misspelling('name')}",
        ),
        (opened(required=["mode", "deep"]), "values.null", "values size"),
        (opened("size", maximum=6), "", ""),
        (opened("deep", "on", type=["boolean", "string"]), "", ""),
    ],
)
def test_an_open_place_is_named(tmp_path: Path, schema: Any, rule: str, where: str) -> None:
    """What the schema allows on purpose is no finding: the wrong values come from it."""
    found = wrong_values(chart(tmp_path, schema=schema)).findings
    assert {(one.rule, one.where) for one in found} >= ({(rule, where)} if rule else set())
    assert bool(found) is bool(rule)


def test_many_mistakes_in_one_set_are_each_answered_for_themselves(tmp_path: Path) -> None:
    """The answer to all together holds the answer to each alone."""
    small = chart(tmp_path)
    wrong = list(wrongs(leaves(small)))
    alone = schema_answers(small, {str(at): one.alone for at, one in enumerate(wrong)})
    assert all(one.is_named(alone[str(at)]) for at, one in enumerate(wrong))
    crates = packed(wrong)
    assert sum(len(crate.wrong) for crate in crates) == len(wrong)
    assert len(crates) < len(wrong) / 3


def test_a_right_value_set_is_accepted(tmp_path: Path) -> None:
    """The judge is not one that refuses everything."""
    answers = schema_answers(chart(tmp_path), {"right": ON, "wrong": {"size": 9}})
    assert answers["right"] == ()
    assert "/size" in answers["wrong"][0]


def test_every_value_of_a_live_template_has_an_effect(tmp_path: Path) -> None:
    """Also of what is read only when something else is on, and of entries of lists."""
    proof = live_values(chart(tmp_path), {"defaults": Case(), "on": Case(ON)})
    assert proof.findings == ()
    assert proof.says == "6 of 6"


@pytest.mark.parametrize(
    ("line", "dead"),
    [
        ("  size: {{ .Values.size | quote }}\n", "values size"),
        ("  name: {{ .Values.deep.name | quote }}\n", "values deep.name"),
        ('  list-{{ .key }}: "there"\n', "values deep.list"),
    ],
)
def test_a_value_that_no_template_reads_is_dead(tmp_path: Path, line: str, dead: str) -> None:
    """The value is named."""
    small = chart(tmp_path, template=TEMPLATE.replace(line, ""))
    found = live_values(small, {"defaults": Case(), "on": Case(ON)}).findings
    assert dead in {one.where for one in found}


PAIRED = """\
{{- if and (eq .Values.mode "fast") (ne (int .Values.size) 5) }}
{{- fail "mode: fast, expected slow unless size is 5" }}
{{- end }}
{{- if and (eq .Values.mode "slow") (eq (int .Values.size) 5) }}
{{- fail "size: 5, expected less unless mode is fast" }}
{{- end }}
"""


def test_values_that_only_change_together_are_alive_where_each_is_read(tmp_path: Path) -> None:
    """A guard refuses every change of the mode alone, and the mode is rendered nevertheless."""
    proof = live_values(chart(tmp_path, template=PAIRED + TEMPLATE), {"on": Case(ON)})
    assert proof.findings == ()
    assert proof.figures["alive_only_with_others"] == 1


def test_a_value_that_only_guards_read_is_dead(tmp_path: Path) -> None:
    """A refusal is no rendered byte."""
    unread = PAIRED + TEMPLATE.replace("  mode: {{ .Values.mode | quote }}\n", "")
    found = live_values(chart(tmp_path, template=unread), {"on": Case(ON)}).findings
    assert [one.where for one in found] == ["values mode"]


@pytest.mark.parametrize(
    ("line", "around"),
    [
        ("failureThreshold: {{ int .failureThreshold }}", "head.probes"),
        ("      gatewayClassName: {{ .gatewayClassName | quote }}\n", "ray.upgrade.incremental"),
    ],
)
def test_a_value_that_the_chart_stops_reading_is_named(
    tmp_path: Path, line: str, around: str
) -> None:
    """Of the real chart, also where guards and other values stand around it."""
    copied = tmp_path / "chart"
    shutil.copytree(CHART, copied)
    for path in copied.rglob("ray/*"):
        path.write_text(path.read_text(encoding="utf-8").replace(line, "\n"), encoding="utf-8")
    asked = [leaf for leaf in leaves(copied) if leaf.name.startswith(around)]
    asked = [leaf for leaf in asked if not leaf.is_section]
    garden = Garden(copied, dict(list(contexts(copied).items())[:7]))
    dead, _ = garden.without_effect(asked, Stage(places=99, tries=3))
    assert {leaf.path[-1] for leaf in dead} == {line.split(":")[0].strip()}
    assert len(asked) > len(dead)


def test_every_context_is_one_that_the_chart_takes() -> None:
    """A refused one would show no effect of anything, and say nothing."""
    assert all(render(case.values) for case in contexts(CHART).values())


def test_neighbours_are_right_values_next_to_the_one_that_is_there(tmp_path: Path) -> None:
    """Never the value itself, never one that the schema refuses."""
    known = {leaf.name: leaf for leaf in leaves(chart(tmp_path))}
    assert neighbours(known["size"], 5, 2) == [4, 3]
    assert neighbours(known["deep.on"], True, 9) == [False]
    assert neighbours(known["deep.name"], "ab", 3) == ["abx", "xab", "a"]
    assert neighbours(known["mode"], "fast", 9) == ["slow"]


def test_a_refused_case_leaves_the_others_alone(tmp_path: Path) -> None:
    """A guard's words are taken for a refusal; what breaks a template is found by halving."""
    guard = '{{- if eq (int .Values.size) 3 }}{{- fail "size: 3, expected another" }}{{- end }}\n'
    broken = "{{- if eq (int .Values.size) 4 }}{{- index (list) 1 }}{{- end }}\n"
    small = chart(tmp_path, template=guard + broken + TEMPLATE)
    found = texts([Case({"size": size}) for size in (1, 2, 3, 4, 5)], chart=small)
    assert [isinstance(one, dict) for one in found] == [True, True, False, False, True]
    assert str(found[2]) == "size: 3, expected another"


def test_a_value_is_placed_into_lists_and_maps() -> None:
    """The base is not touched."""
    base = {"a": {"list": [{"key": "x"}]}}
    assert placed(base, ("a", "list", 0, "key"), "y") == {"a": {"list": [{"key": "y"}]}}
    assert placed({}, ("a", "b"), 1) == {"a": {"b": 1}}
    assert base == {"a": {"list": [{"key": "x"}]}}


def test_a_misspelling_is_another_word_of_the_same_look() -> None:
    """Also where two letters are alike."""
    for word in ("enabled", "aa", "x", "dryRun"):
        assert misspelling(word) != word


@pytest.mark.parametrize(
    ("name", "kind"),
    [("url", "string"), ("endpoint", "string"), ("timeZone", "string"), ("cidrs", "array")],
)
def test_a_value_whose_name_says_more_than_its_schema_is_named(
    tmp_path: Path, name: str, kind: str
) -> None:
    """A new address is asked what every address is asked, before anybody writes a test of it."""
    schema = copy.deepcopy(SCHEMA)
    schema["properties"][name] = {"type": kind, "items": {"type": "string"}}
    found = wrong_values(chart(tmp_path, schema=schema)).findings
    assert {(one.rule, one.where) for one in found} == {("values.form", f"values {name}")}


@pytest.mark.parametrize(
    ("call", "section"),
    [
        ('{{- include "tocsin.rules.placement" (dict "where" (ternary', "chaos.driver"),
        ('{{- include "tocsin.rules.resources" (dict "where" $where "resources" $pod', "test"),
        ('{{- include "tocsin.rules.resources" (dict "where" "ray.autoscaling"', "ray.autoscaling"),
    ],
)
def test_a_section_whose_guard_is_not_asked_is_named(
    tmp_path: Path, call: str, section: str
) -> None:
    """A guard that is there for one kind of pod is there for all that have such a section."""
    copied = tmp_path / "chart"
    shutil.copytree(CHART, copied)
    rules = copied / "templates" / "ray" / "_rules.tpl"
    text = rules.read_text(encoding="utf-8")
    (line,) = [one for one in text.splitlines() if one.startswith(call)]
    rules.write_text(text.replace(line, ""), encoding="utf-8")
    found, asked = contradictions.accepted(copied)
    assert any(one.where.startswith(f"values {section}") for one in found)
    assert len(found) < asked


def test_the_chart_refuses_every_wrong_value() -> None:
    """Thousands of them, by helm itself."""
    proof = wrong_values(CHART)
    assert proof.findings == ()
    assert int(proof.figures["wrong"]) > 3000
