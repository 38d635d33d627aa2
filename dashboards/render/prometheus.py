"""Prometheus' own configuration: where the hubs are, which rules, whom to tell."""

from typing import Any

from tocsin.dashboards.promql import DRILL
from tocsin.dashboards.render.options import RenderOptions
from tocsin.dashboards.render.rule_tests import RULES

JOB = "tocsin"
SAMPLE_LIMIT = 5000


def prometheus_file(options: RenderOptions) -> dict[str, Any]:
    """The document for `--config.file`, with the rule file beside it.

    There are no external labels: an alert that is pushed directly must have the same labels as
    the rule's copy, or people are told twice.
    """
    scrape: dict[str, Any] = {"job_name": JOB, "sample_limit": SAMPLE_LIMIT}
    if options.http_sd:
        scrape["http_sd_configs"] = [
            {"url": url, "refresh_interval": "5s"} for url in options.http_sd
        ]
    static: list[dict[str, Any]] = []
    if options.targets:
        static.append({"targets": list(options.targets)})
    if options.drill_targets:
        static.append({"targets": list(options.drill_targets), "labels": {DRILL: "true"}})
    if static:
        scrape["static_configs"] = static
    return {
        "global": {
            "scrape_interval": f"{options.scrape_s}s",
            "scrape_timeout": f"{min(options.scrape_s, 5)}s",
            "evaluation_interval": f"{options.evaluation_s}s",
        },
        "rule_files": [RULES],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": list(options.alertmanagers)}]}]
        },
        "scrape_configs": [scrape],
    }
