"""`tocsin chaos run --alerts`: both servers come and go with the run, their alerts are judged."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.checkout import ROOT
from tests.live.walk import TOCSIN

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]


def test_a_run_brings_its_own_alerting_and_takes_it_away_again(tmp_path: Path) -> None:
    """Each fault that was seen has an alert at its route; afterwards nobody answers there."""
    words = [str(TOCSIN), "chaos", "run", "smoke", "--alerts", "--store", str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=480)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads((tmp_path / "latest" / "verdict.json").read_text(encoding="utf-8"))
    (routing,) = (one for one in verdict["properties"] if one["id"] == "alert.routing")
    assert routing["verdict"] == "pass"
    assert routing["checked"] >= 3
    (watched,) = (line for line in done.stderr.splitlines() if line.endswith("watch this run"))
    urls = [word for word in watched.split() if word.startswith("http://")]
    assert len(urls) == 2
    for url in urls:
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)
