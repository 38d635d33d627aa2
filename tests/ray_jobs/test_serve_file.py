"""Serve config files: what is wrong in one is said on one line, before anything is started."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.exceptions import RayServeException

from tocsin.checker.settings import CheckerSettings
from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.serve_app import build
from tocsin.ray_jobs.serve_arguments import ServeArguments, arguments_of
from tocsin.ray_jobs.serve_file import ServeFile, parse_serve_config, read_serve_file

GOOD: dict[str, Any] = {
    "proxy_location": "EveryNode",
    "http_options": {"host": "0.0.0.0", "port": 8123},
    "applications": [
        {
            "name": "tocsin",
            "route_prefix": "/",
            "import_path": "tocsin.ray_jobs.serve_app:build",
            "args": {"model": "smollm2-135m", "slots": 4, "device": "auto"},
            "deployments": [
                {
                    "name": "tocsin-worker",
                    "num_replicas": 3,
                    "ray_actor_options": {"num_cpus": 1, "num_gpus": 0.5},
                    "user_config": {"profile": "guard", "failures_max": 5},
                },
                {"name": "tocsin-gateway", "num_replicas": 1},
            ],
        }
    ],
}


def parse(data: Any) -> ServeFile:
    return parse_serve_config(yaml.safe_dump(data), "serve.yaml")


def changed(path: str, value: Any) -> dict[str, Any]:
    """The good config with one place changed."""
    data = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    place: Any = data
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    place[int(last) if last.isdigit() else last] = value
    return data


def test_a_good_file_is_what_ray_and_we_make_of_it() -> None:
    """Arguments, settings, replicas and where it will serve."""
    file = parse(GOOD)
    assert file.arguments.slots == 4
    assert file.settings == CheckerSettings(profile=Profile.GUARD, failures_max=5)
    assert (file.replicas, file.host, file.port) == (3, "", 8123)
    assert parse(changed("http_options.host", "127.0.0.1")).host == "127.0.0.1"


def test_replicas_and_settings_need_not_be_said() -> None:
    """Then the arguments count."""
    data = changed("applications.0.args.replicas", 7)
    data["applications"][0]["deployments"] = []
    file = parse(data)
    assert (file.replicas, file.settings) == (7, None)


D0 = "applications.0.deployments.0"


@pytest.mark.parametrize(
    ("path", "value", "found"),
    [
        ("applicatons", [], "applicatons: found an unknown key"),
        ("http_options.prot", 1, "http_options.prot: found an unknown key"),
        ("http_options.port", "high", "http_options.port: found 'high'"),
        ("proxy_location", "Nowhere", "proxy_location: found 'Nowhere'"),
        ("applications.0.arg", {}, "applications.0.arg: found an unknown key"),
        ("applications.0.name", "toxin", "applications.0.name: found 'toxin', expected 'tocsin'"),
        ("applications.0.import_path", "a.b:c", "found a.b:c, expected one"),
        ("applications.0.args.slotz", 4, "args.slotz: found an unknown key, expected one of"),
        ("applications.0.args.slots", 0, "args.slots: found 0"),
        ("applications.0.args.dtype", "fp8", "args.dtype: found 'fp8'"),
        ("applications.0.args.device", "tpu", "args.device: found 'tpu'"),
        ("applications.0.args.pages", 3, "args: engine: pages is 3"),
        (f"{D0}.name", "worker", "found 'worker', expected tocsin-worker or tocsin-gateway"),
        (f"{D0}.num_replica", 1, "deployments.0.num_replica: found an unknown key"),
        (f"{D0}.num_replicas", -1, "num_replicas"),
        (f"{D0}.ray_actor_options.num_gpu", 1, "num_gpu: found an unknown key"),
        (f"{D0}.user_config.profil", "off", "user_config.profil: found an unknown key"),
        (f"{D0}.user_config.profile", "most", "user_config.profile: found 'most'"),
        (f"{D0}.user_config.journal", {"rotate": 1}, "user_config.journal.rotate: found an unk"),
        (f"{D0}.user_config.thresholds", {"no.such": {}}, "thresholds: no check ['no.such']"),
        (f"{D0}.user_config.essential_free_bytes", 1 << 40, "expected at most"),
        ("applications.0.deployments.1.user_config", {}, "found one, expected none"),
        ("applications.0.deployments.1.name", "tocsin-worker", "found tocsin-worker twice"),
        ("applications.0.deployments", ["x"], "serve.yaml: "),
        ("http_options.port", 99_999, "http_options.port: found 99999, expected 1 to 65535"),
        ("applications.0.route_prefix", "x", "route_prefix"),
    ],
)
def test_each_mistake_is_one_line_that_says_where(path: str, value: Any, found: str) -> None:
    """Of Ray's part and of ours; the file's name comes first."""
    with pytest.raises(SpecError) as caught:
        parse(changed(path, value))
    message = str(caught.value)
    assert message.startswith("serve.yaml: ")
    assert found in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: [", "not YAML"),
        ("a: 2020-99-99", "not YAML"),
        ("[" * 50_000, "nested too deeply"),
        ("- 1", "found list"),
        ("{}", "applications"),
        ("", "found NoneType"),
    ],
)
def test_what_is_no_config_is_said(text: str, found: str) -> None:
    """Nothing of Ray's own traceback."""
    with pytest.raises(SpecError, match=found) as caught:
        parse_serve_config(text)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    """And one that is no text."""
    with pytest.raises(SpecError, match="No such file"):
        read_serve_file(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="cannot be read"):
        read_serve_file(tmp_path / "bytes")


def test_arguments_have_the_names_and_defaults_of_the_options() -> None:
    """Whoever knows the one knows the other; every field has its words."""
    options = arguments_of({}).options()
    assert options == ServeOptions()
    assert all(field.description for field in ServeArguments.model_fields.values())
    given = arguments_of({"model": "/models/mine", "name": "Mine", "gpus_per_replica": 0.25})
    assert given.options() == ServeOptions(model="/models/mine", name="Mine")
    assert given.options().served_name == "Mine"


def test_the_builder_answers_a_wrong_argument_with_serve_s_own_error() -> None:
    """Serve shows that as the application's status, without a traceback; nothing was started."""
    with pytest.raises(RayServeException, match=r"^serve config: args\.slotz: found an unknown"):
        build({"slotz": 4})


def test_the_archive_s_address_is_not_told(tmp_path: Path) -> None:
    """It may hold a password."""
    options = ServeOptions(path=str(tmp_path), archive_url="s3://key:secret@bucket/x")
    assert "secret" not in str(options.told())
    assert options.told()["path"] == str(tmp_path)
