"""Words that YAML takes for something else arrive as words."""

import shutil
from pathlib import Path

import pytest

from tocsin.helm.gate.mutants.gate import surroundings
from tocsin.helm.gate.proofs.quoting import quoting
from tocsin.helm.gate.render import CHART

EVERYTHING = surroundings()["everything"].values


def test_numbers_and_truth_values_stay_words_in_every_value() -> None:
    """A namespace called 456, a label whose key is 123, an image tag of 1e3: all are text."""
    proof = quoting(CHART, EVERYTHING)
    assert [str(one) for one in proof.findings] == []
    assert proof.figures["values"] >= 150


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "quoted", "bare"),
    [
        ("ray/config.yaml", "Release.Namespace | quote", "Release.Namespace"),
        (
            "_pod.tpl",
            "{{ $key | quote }}: {{ $value | quote }}",
            "{{ $key }}: {{ $value | quote }}",
        ),
    ],
)
def test_a_quote_that_is_left_out_is_seen(
    template: str, quoted: str, bare: str, tmp_path: Path
) -> None:
    """Once for a value and once for the key of a map."""
    copy = tmp_path / "tocsin"
    shutil.copytree(CHART, copy)
    file = copy / "templates" / template
    text = file.read_text(encoding="utf-8")
    assert quoted in text
    file.write_text(text.replace(quoted, bare), encoding="utf-8")
    assert quoting(copy, EVERYTHING).findings
