"""The forms of values: what no cluster could use is refused by the schema, at its own place."""

import re
import zoneinfo
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from tests.helm.ray_values import nested
from tocsin.helm.gate.proofs.schema_answers import schema_answers
from tocsin.helm.gate.render import CHART
from tocsin.helm.values.schedule import ZONE

PREFIX = "example.com/"
CIDRS = (
    "networkPolicy.serve.cidrs",
    "networkPolicy.metrics.cidrs",
    "networkPolicy.operator.cidrs",
    "networkPolicy.egress.cidrs",
    "chaos.apiServer.cidrs",
)
LINKS = (
    "monitoring.links.grafanaUrl",
    "monitoring.links.gatewayUrl",
    "monitoring.links.docsUrl",
    "monitoring.relay.url",
)
URLS = ("alertmanager.url", "telemetry.endpoint", *LINKS)
STORES = ("chaos.publish.url", "checker.journal.archive_url")
# Path → (what is refused there, what is taken).
FORMS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    **{
        path: (
            (["10.0.0.0/99"], ["300.0.0.0/8"], ["10.0.0/8"], ["::1/129"], ["1::2::3/64"], [""]),
            (["10.0.0.0/8"], ["0.0.0.0/0", "::/0"], ["2001:db8::/32"], ["fe80::1/128"]),
        )
        for path in CIDRS
    },
    **{
        path: (
            ("http://am:99999", "http://u:p@am:9093", "http://am/?a=b", "http://am/#a", "am:9093"),
            ("", "http://am:9093", "https://am.example/prefix/", "http://[fd00::1]:65535"),
        )
        for path in URLS
    },
    **{
        path: (
            ("not a url", "s3://a\nb", "s3://key:secret@bucket/runs", "/var/archive", "s3://"),
            ("", "s3://bucket/runs", "file:///archive", "abfs://runs@account.example/a"),
        )
        for path in STORES
    },
    "ray.gcsFaultTolerance.redisAddress": (("redis:0", "redis:65536"), ("redis:6379",)),
    "image.repository": (("registry:99999/tocsin",), ("registry:5000/tocsin",)),
    "image.pullSecrets": (([""], ["A"]), (["registry"], [])),
    "monitoring.relay.configKey": (("..", ".", "..a", "a/b"), ("relay.yaml", ".a")),
    "token.key": (("..", ""), ("token",)),
    "chaos.timeZone": (("Local", "Mars/Base", ""), ("Etc/UTC", "Europe/Berlin", "Japan")),
    "chaos.namespaceLabel": (
        ("a" * 64 + "=b", "a=" + "b" * 64, "a=b-", "a-=b"),
        ("a" * 63 + "=" + "b" * 63, PREFIX + "a=b"),
    ),
    "worker.gpu.resourceName": ((PREFIX + "a" * 64, "gpu"), (PREFIX + "a" * 63,)),
    "worker.podAnnotations": (({PREFIX + "a" * 64: ""},), ({PREFIX + "a" * 63: ""},)),
    "head.nodeSelector": (({"a" * 64: "b"},), ({"a" * 63: "b"},)),
    "workerGroups": (({"a" * 21: {}}, {"a.b": {}}), ({"a" * 20: {}},)),
    "monitoring.alertmanagerConfig.receivers.page.email.smarthost": (("a:99999",), ("a:25",)),
}


@cache
def answers() -> Mapping[str, tuple[str, ...]]:
    """All of them in one call of helm: `path side number` → helm's objections."""
    sets = {
        f"{path} {side} {number}": nested(path, value)
        for path, sides in FORMS.items()
        for side, values in zip(("wrong", "right"), sides, strict=True)
        for number, value in enumerate(values)
    }
    return schema_answers(CHART, sets)


@pytest.mark.parametrize("path", FORMS)
def test_a_value_of_a_wrong_form_is_refused_at_its_place(path: str) -> None:
    """Helm names this value and no other: a message about another key sends people astray."""
    place = "at '/" + path.replace(".", "/")
    for number, value in enumerate(FORMS[path][0]):
        said = answers()[f"{path} wrong {number}"]
        assert said, value
        assert all(line.startswith(place) for line in said), (value, said)


@pytest.mark.parametrize("path", FORMS)
def test_the_nearest_right_value_is_taken(path: str) -> None:
    """A form that is too narrow keeps people from what works."""
    for number, value in enumerate(FORMS[path][1]):
        assert answers()[f"{path} right {number}"] == (), value


def test_every_zone_of_the_data_base_is_taken() -> None:
    """But for two names that stand for no zone: the machine's own, and the unset one."""
    left = {one for one in zoneinfo.available_timezones() if not re.fullmatch(ZONE, one)}
    assert left <= {"Factory", "localtime"}
