"""A service is called well only where each thing that was looked at is well."""

import httpx
import pytest
from typer.testing import CliRunner

from tocsin.core.clock import ManualClock
from tocsin.core.terms import Profile
from tocsin.ray_jobs.cli import app
from tocsin.ray_jobs.cluster import free_port
from tocsin.ray_jobs.commands.edge import EXIT_SPEC
from tocsin.ray_jobs.probing import Observation, probe

HEALTH = {"status": "ok", "last_token_age_s": 0.2, "replicas": 2, "replicas_expected": 2}
STATUS = {
    "profile": "full",
    "orders": [],
    "table": {"rope": {"numerical": {"evaluations": 12}, "state": {"evaluations": 3}}},
}
ANSWER = {
    "choices": [{"finish_reason": "length", "message": {"content": "Ding"}}],
    "usage": {"completion_tokens": 8},
    "tocsin": {"degraded": []},
}


class Service:
    """A gateway in memory whose answers a test changes."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, object]] = {
            "/health": (200, dict(HEALTH)),
            "/health/checker_status": (200, dict(STATUS)),
            "/v1/models": (200, {"data": [{"id": "tiny"}]}),
            "/v1/chat/completions": (200, dict(ANSWER)),
        }
        self.asked: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        status, body = self.answers[request.url.path]
        return httpx.Response(status, json=body)

    def look(
        self,
        profile: Profile | None = Profile.FULL,
        completion: bool = True,
        within_s: float = 0.0,
        clock: ManualClock | None = None,
    ) -> tuple[Observation, ...]:
        client = httpx.Client(base_url="http://gateway", transport=httpx.MockTransport(self))
        with client:
            return probe(
                client,
                profile=profile,
                completion=completion,
                within_s=within_s,
                clock=clock or ManualClock(),
            )


def test_a_service_that_is_well_gives_one_ok_line_for_each_look() -> None:
    """Health, a real answer, the declared profile, and checks that were evaluated."""
    seen = Service().look()
    assert [one.what for one in seen] == ["health", "completion", "profile", "checks"]
    assert [one.line() for one in seen] == [
        "ok      health: 2 of 2 replicas, last token 0.2 s ago",
        "ok      completion: 8 tokens from tiny",
        "ok      profile: full",
        "ok      checks: 15 evaluations at 1 of 1 operators",
    ]


@pytest.mark.parametrize(
    ("path", "answer", "what", "said"),
    [
        ("/health", (503, {**HEALTH, "status": "failing"}), "health", "HTTP 503"),
        ("/health", (200, {}), "health", "status None"),
        ("/health/checker_status", (200, {**STATUS, "profile": "guard"}), "profile", "'guard'"),
        ("/health/checker_status", (404, {}), "profile", "is this a tocsin gateway"),
        ("/health/checker_status", (200, {"profile": "full"}), "checks", "0 evaluations"),
        ("/v1/chat/completions", (200, {**ANSWER, "usage": {}}), "completion", "no tokens"),
        (
            "/v1/chat/completions",
            (502, {"error": {"message": "refused"}}),
            "completion",
            "HTTP 502: refused",
        ),
    ],
)
def test_each_thing_that_is_wrong_fails_the_line_that_names_it(
    path: str, answer: tuple[int, object], what: str, said: str
) -> None:
    """And the others are told all the same."""
    service = Service()
    service.answers[path] = answer
    seen = service.look()
    assert len(seen) == 4
    failed = {one.what: one.message for one in seen if not one.ok}
    assert said in failed[what]
    assert all(one.line().startswith("FAILED  ") for one in seen if not one.ok)


def test_a_service_without_checks_is_well_only_when_it_is_declared_so() -> None:
    """The profile off has no evaluations, and is refused where another one was declared."""
    service = Service()
    service.answers["/health/checker_status"] = (200, {"profile": "off"})
    assert all(one.ok for one in service.look(profile=Profile.OFF))
    assert [one.what for one in service.look() if not one.ok] == ["profile"]


def test_no_answer_is_asked_for_when_nobody_wants_one() -> None:
    """A test that must not make work for the GPUs."""
    service = Service()
    assert len(service.look(completion=False)) == 3
    assert "/v1/chat/completions" not in service.asked


def test_a_service_that_is_still_loading_is_given_its_time() -> None:
    """Looked at once a second, until it is well or the time is over."""
    service, clock = Service(), ManualClock()
    service.answers["/health"] = (503, {})
    assert not all(one.ok for one in service.look(within_s=5.0, clock=clock))
    assert clock.now_ns() == 5_000_000_000
    assert service.asked.count("/health") == 6


def test_orders_in_force_and_degraded_answers_are_told() -> None:
    """Neither is a failure: both are what somebody or the checker decided."""
    service = Service()
    service.answers["/health/checker_status"] = (200, {**STATUS, "orders": [{}]})
    service.answers["/v1/chat/completions"] = (
        200,
        {**ANSWER, "tocsin": {"degraded": ["attention"]}},
    )
    lines = [one.line() for one in service.look()]
    assert "ok      profile: full, 1 switch order(s) in force" in lines
    assert "ok      completion: 8 tokens from tiny, degraded: attention" in lines


def test_an_address_where_nobody_listens_is_four_failed_lines_and_exit_code_one() -> None:
    """No traceback, and the address is named."""
    url = f"http://127.0.0.1:{free_port()}"
    result = CliRunner().invoke(app, ["probe", url, "--within-s", "0"])
    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("FAILED") and url in line for line in lines)


@pytest.mark.parametrize("url", ["demo-head-svc:8000", "", "ftp://host", "http://", "http://[::1"])
def test_what_is_no_address_is_one_line_of_its_own(url: str) -> None:
    """A person's mistake, not the service's."""
    result = CliRunner().invoke(app, ["probe", "--", url])
    assert result.exit_code == EXIT_SPEC
    assert result.output.startswith(f"tocsin: probe: {url!r} is no address")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models", {"data": "x"}),
        ("/v1/models", {"data": [1]}),
        ("/v1/chat/completions", {"choices": "x", "usage": 3, "tocsin": [], "error": "no"}),
        ("/health/checker_status", {"profile": "full", "orders": 3, "table": ["rope"]}),
        ("/health/checker_status", {"profile": "full", "table": {"rope": {"numerical": 1}}}),
    ],
)
def test_an_answer_of_another_form_is_a_failed_line_and_no_traceback(
    path: str, body: object
) -> None:
    """Some other server may sit at that address."""
    service = Service()
    service.answers[path] = (200, body)
    seen = service.look()
    assert len(seen) == 4
    assert all("\n" not in one.line() for one in seen)
    if path != "/v1/models":
        assert not all(one.ok for one in seen)
