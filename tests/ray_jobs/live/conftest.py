"""A served tiny model and a browser in front of it, each made once."""

import os
from collections.abc import Iterator

import pytest

from tests.chaos.report.browser import Page, chromium, open_browser
from tests.ray_jobs.served import TOKEN, Serving
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.ray_jobs.application import deploy
from tocsin.ray_jobs.cluster import Cluster, free_port
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.system import RaySystem


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """Two replicas of a tiny model, in a node folder of their own."""
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    options = ServeOptions(path=str(path), model=str(path), slots=4, pages=64, max_length=256)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_STATE", str(tmp_path_factory.mktemp("node")))
        patch.setenv("TOCSIN_METRICS_PORT", "0")
        with Cluster(options.replicas):
            served = deploy(options, host="127.0.0.1", port=free_port(), token=TOKEN)
            system = RaySystem(served, tmp_path_factory.mktemp("cache"))
            yield Serving(served.url, options.served_name, system)
            system.close()


@pytest.fixture(scope="package")
def browser() -> Iterator[Page]:
    """A page of a headless browser; where there is none the test is skipped, in CI it fails."""
    program = chromium()
    if not program:
        reason = "no Chromium found; install it (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with open_browser(program) as opened:
        yield opened
