"""All rendered files together, by name."""

import os
from pathlib import Path

from tocsin.dashboards.render.alertmanager import alertmanager_file
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.prometheus import prometheus_file
from tocsin.dashboards.render.routes import route_tests
from tocsin.dashboards.render.rule_tests import test_file
from tocsin.dashboards.render.rules import rule_file
from tocsin.dashboards.render.yaml_text import yaml_text

RULES, RULE_TESTS = "rules.yml", "rules.test.yml"
ALERTMANAGER, ROUTE_TESTS = "alertmanager.yml", "routes.test.yml"
PROMETHEUS = "prometheus.yml"


def rendered(options: RenderOptions) -> dict[str, str]:
    """File name → text."""
    return {
        RULES: yaml_text(rule_file(options)),
        RULE_TESTS: yaml_text(test_file(options)),
        ALERTMANAGER: yaml_text(alertmanager_file(options)),
        ROUTE_TESTS: yaml_text(route_tests(options)),
        PROMETHEUS: yaml_text(prometheus_file(options)),
    }


def write(folder: Path, options: RenderOptions) -> list[Path]:
    """Write them all; a file that holds a secret can be read by its owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in rendered(options).items():
        path = folder / name
        secret = name == ALERTMANAGER and options.wecom_app is not None
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644
        )
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            if secret:
                os.fchmod(descriptor, 0o600)  # a file that was there keeps its mode otherwise
            file.write(text)
        paths.append(path)
    return paths
