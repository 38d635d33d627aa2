"""A soak's trend tells a leak from a cache, and its verdict is the worst that is true of it."""

from typing import Any

import pytest

from tocsin.chaos.soak.document import Soak, Window
from tocsin.chaos.soak.page import soak_page
from tocsin.chaos.soak.trend import WINDOWS_LEAST, trends

MIB = 2**20


def window(index: int, rss_mib: float, **changes: Any) -> Window:
    """A window that passed, and what its process held at its end."""
    whole: dict[str, Any] = {
        "index": index,
        "name": f"soak-0-{index}",
        "kinds": ("kv.bitflip",),
        "verdict": "pass",
        "exit_code": 0,
        "sentence": "nothing happened",
        "requests": 100,
        "compared": 90,
        "planned": 2,
        "fired": 2,
        "wall_s": 1.0,
        "processes": {"simulation": {"rss_bytes": rss_mib * MIB, "fds": 9, "threads": 4}},
    }
    return Window(**{**whole, **changes})


def _verdict(readings: list[float], key: str = "rss_bytes") -> str:
    windows = [window(i, mib) for i, mib in enumerate(readings)]
    return next(one.verdict for one in trends(windows) if one.reading == key)


@pytest.mark.parametrize(
    ("readings", "verdict"),
    [
        ([500.0] * 12, "steady"),
        ([300.0, 480.0, 500.0] + [505.0] * 9, "steady"),  # it warms up, and stays
        ([500.0, 900.0] * 6, "steady"),  # it goes up and down
        ([500.0 + 3 * i for i in range(12)], "steady"),  # it grows, by less than is let pass
        ([500.0 + 30 * i for i in range(12)], "leak"),
        ([500.0 + 30 * i + (-1) ** i * 20 for i in range(12)], "leak"),  # under noise
        ([500.0 + 30 * i for i in range(WINDOWS_LEAST)], "unknown"),  # too few after the warm ones
    ],
)
def test_a_leak_is_told_from_warming_up_and_from_noise(readings: list[float], verdict: str) -> None:
    """The nearest misses stand beside it."""
    assert _verdict(readings) == verdict


def test_a_process_that_was_replaced_begins_anew() -> None:
    """Readings of a dead process are not those of its successor."""
    old = [window(i, 500.0 + 40 * i) for i in range(8)]
    new = [
        window(8 + i, 300.0, processes={"simulation (pid 2)": {"rss_bytes": 300.0 * MIB}})
        for i in range(10)
    ]
    (found,) = trends(old + new)
    assert (found.process, found.verdict) == ("simulation (pid 2)", "steady")


def test_open_files_that_are_never_closed_are_a_leak_as_well() -> None:
    """One more in each request's wake."""
    windows = [
        window(i, 500.0, processes={"simulation": {"rss_bytes": 500 * MIB, "fds": 9 + 5 * i}})
        for i in range(12)
    ]
    assert {one.reading: one.verdict for one in trends(windows)} == {
        "rss_bytes": "steady",
        "fds": "leak",
    }


def test_the_page_says_all_in_one_file_and_escapes_what_it_is_given() -> None:
    """No network, and a sentence of an experiment is text."""
    windows = tuple(window(i, 500.0, sentence="<b>wrong</b>") for i in range(9))
    soak = Soak(
        where="sim",
        model="tiny",
        seed=3,
        faultless=False,
        wanted_requests=900,
        wanted_hours=None,
        done=True,
        verdict="pass",
        exit_code=0,
        sentence="18 faults",
        requests=900,
        wall_s=60.0,
        windows=windows,
        trends=trends(windows),
    )
    page = soak_page(soak)
    assert "pass: 18 faults" in page
    assert "&lt;b&gt;wrong" in page
    assert "http" not in page
    assert page.count("<tr") == 1 + len(soak.trends) + 1 + len(windows)
    assert Soak.model_validate_json(soak.model_dump_json()) == soak
