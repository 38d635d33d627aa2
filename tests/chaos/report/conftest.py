"""What the report's tests share: written pages and a browser, each made once."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.report.browser import Page, chromium, open_browser
from tests.chaos.report.verdicts import RUNS
from tocsin.chaos.report import write_report


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Path of the report of a made-up run, by its name."""
    paths: dict[str, Path] = {}

    def write(name: str) -> Path:
        if name not in paths:
            paths[name] = write_report(tmp_path_factory.mktemp(name), *RUNS[name]())
        return paths[name]

    return write


@pytest.fixture(scope="session")
def page() -> Iterator[Page]:
    """A page of a headless browser; where there is none the test is skipped, in CI it fails."""
    program = chromium()
    if not program:
        reason = "no Chromium found; install it (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with open_browser(program) as opened:
        yield opened
