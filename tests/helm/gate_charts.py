"""Small charts, and faults put into rendered objects, for the tests of the proofs."""

import copy
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tocsin.helm.gate.manifest import Manifest, manifest

Body = dict[str, Any]
Edit = Callable[[Body], None]

SCHEMA: Body = {
    "type": "object",
    "additionalProperties": False,
    "required": ["size", "mode", "deep"],
    "properties": {
        "global": {"type": "object"},
        "size": {"type": "integer", "minimum": 1, "maximum": 5},
        "mode": {"type": "string", "enum": ["slow", "fast"]},
        "deep": {
            "type": "object",
            "additionalProperties": False,
            "required": ["on", "name", "list"],
            "properties": {
                "on": {"type": "boolean"},
                "name": {"type": "string", "pattern": "^[a-z]*$"},
                "list": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["key"],
                        "properties": {"key": {"type": "string", "pattern": "^[a-z]+$"}},
                    },
                },
            },
        },
    },
}
VALUES: Body = {"size": 2, "mode": "slow", "deep": {"on": False, "name": "", "list": []}}
TEMPLATE = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name | quote }}
data:
  size: {{ .Values.size | quote }}
  mode: {{ .Values.mode | quote }}
  {{- if .Values.deep.on }}
  name: {{ .Values.deep.name | quote }}
  {{- end }}
  {{- range .Values.deep.list }}
  list-{{ .key }}: "there"
  {{- end }}
"""


def chart(folder: Path, *, schema: Body = SCHEMA, template: str = TEMPLATE) -> Path:
    """A chart with one template."""
    place = folder / "small"
    (place / "templates").mkdir(parents=True)
    (place / "Chart.yaml").write_text("apiVersion: v2\nname: small\nversion: 0.1.0\n")
    (place / "values.yaml").write_text(json.dumps(VALUES))
    (place / "values.schema.json").write_text(json.dumps(schema))
    (place / "templates" / "object.yaml").write_text(template)
    return place


def edited(objects: Sequence[Manifest], kind: str, edit: Edit, name: str = "") -> list[Manifest]:
    """The render with a fault in the first object of a kind, and of a name where it is given."""
    found: list[Manifest] = []
    done = False
    for one in objects:
        if not done and one.kind == kind and name in ("", one.name):
            body = copy.deepcopy(one.body)
            edit(body)
            found.append(manifest(body, one.source))
            done = True
        else:
            found.append(one)
    assert done, f"no {kind} {name} among {[one.where for one in objects]}"
    return found


def at(body: Any, *keys: str | int) -> Any:
    """What lies below these keys."""
    for key in keys:
        body = body[key]
    return body
