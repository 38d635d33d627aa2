"""`tocsin serve --config`: what is wrong ends in one line, before a cluster is looked for."""

from pathlib import Path

import pytest
import yaml

from tests.ray_jobs.test_cli import the_line, tocsin
from tests.ray_jobs.test_serve_file import GOOD, changed
from tocsin.core.errors import SpecError
from tocsin.ray_jobs.commands.edge import EXIT_SPEC
from tocsin.ray_jobs.serve_deploy import cluster_address


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "serve.yaml"
    path.write_text(yaml.safe_dump(GOOD))
    return path


def test_a_wrong_config_is_one_line(config: Path) -> None:
    """With the file's name, the place, what was found and what was expected."""
    config.write_text(yaml.safe_dump(changed("applications.0.args.slotz", 1)))
    result = tocsin("serve", "--config", config)
    assert result.exit_code == EXIT_SPEC
    line = the_line(result)
    assert f"{config}: applications.0.args.slotz: found an unknown key, expected one of" in line


def test_a_config_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """And no traceback of the file system's."""
    result = tocsin("serve", "--config", tmp_path / "none.yaml")
    assert result.exit_code == EXIT_SPEC
    assert "cannot be read (No such file or directory)" in the_line(result)


def test_an_option_that_the_file_decides_is_refused(config: Path) -> None:
    """It would be ignored otherwise."""
    result = tocsin("serve", "--config", config, "--max-length", 64)
    assert result.exit_code == EXIT_SPEC
    assert "found --max-length beside --config" in the_line(result)


def test_detaching_needs_a_config_and_a_cluster(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster of its own would end with the command."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert "without --config" in the_line(tocsin("serve", "--detach"))
    result = tocsin("serve", "--config", config, "--detach")
    assert result.exit_code == EXIT_SPEC
    assert "expected RAY_ADDRESS" in the_line(result)


def test_the_cluster_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job server takes jobs, no application: said as such."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for address, expected in (("", None), ("auto", "auto"), ("ray://h:10001", "ray://h:10001")):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert cluster_address() == expected
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(SpecError, match="submit `tocsin serve"):
        cluster_address()
