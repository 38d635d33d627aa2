"""A serve config on a real Ray: deployed, changed in place while it answers, refused."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import yaml
from ray import serve
from ray.serve.schema import ServeDeploySchema

from tests.ray_jobs.served import Serving, wait_until
from tests.ray_jobs.tiny_model import save_tiny_model
from tocsin.core.errors import EnvironmentFault
from tocsin.core.history import Outcome
from tocsin.ray_jobs.application import Served
from tocsin.ray_jobs.board_actor import ensure_board
from tocsin.ray_jobs.cluster import APPLICATION, Cluster, free_port
from tocsin.ray_jobs.fleet import WORKER
from tocsin.ray_jobs.serve_deploy import deploy_file, reason_of
from tocsin.ray_jobs.serve_file import parse_serve_config
from tocsin.ray_jobs.system import RaySystem

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

TOKEN = "said by the environment"
LIMIT = {"limit_ulp": 60.0}


class Configured(Serving):
    """The running application, and the config that it came from."""

    config: dict[str, Any]

    def apply(self, args: dict[str, Any] | None = None, **settings: Any) -> None:
        """As KubeRay does it: Ray's own schema, and nobody of ours looks at it before."""
        ours = self.config["applications"][0]
        worker = {**ours["deployments"][0], "user_config": settings}
        changed = {**ours, "args": {**ours["args"], **(args or {})}, "deployments": [worker]}
        schema = ServeDeploySchema.model_validate({**self.config, "applications": [changed]})
        client: Any = serve.context._get_global_client()
        client.deploy_apps(schema)

    def status(self) -> dict[str, Any]:
        return dict(self.get("/health/checker_status").json())

    def settings(self) -> list[dict[str, Any]]:
        return [one["settings"] for one in self.status()["replicas"].values()]

    def pids(self) -> set[int]:
        return {one["pid"] for one in self.status()["replicas"].values()}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = save_tiny_model(tmp_path_factory.mktemp("tiny"))
    worker = {"name": WORKER, "num_replicas": 2, "user_config": {"profile": "full"}}
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "127.0.0.1", "port": free_port()},
        "applications": [
            {
                "name": APPLICATION,
                "route_prefix": "/",
                "import_path": "tocsin.ray_jobs.serve_app:build",
                "args": {"model": str(path), "name": "tiny", "slots": 4, "pages": 64}
                | {"max_length": 256},
                "deployments": [worker],
            }
        ],
    }


@pytest.fixture(scope="module")
def serving(
    config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Configured]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOCSIN_STATE", str(tmp_path_factory.mktemp("node")))
        patch.setenv("TOCSIN_METRICS_PORT", "0")
        patch.setenv("TOCSIN_TOKEN", TOKEN)
        with Cluster(2):
            file = parse_serve_config(yaml.safe_dump(config))
            url = deploy_file(file)
            served = Served(url, ensure_board(), file.arguments.options())
            system = RaySystem(served, tmp_path_factory.mktemp("cache"))
            made = Configured(url, "tiny", system)
            made.config = config
            yield made
            system.close()


def test_the_gateway_tells_what_a_driver_elsewhere_must_know(
    serving: Configured, config: dict[str, Any]
) -> None:
    """Options, build and weights: enough to make the golden answers in another pod."""
    status = serving.status()
    served = status["served"]
    args = config["applications"][0]["args"]
    assert served["name"] == "tiny"
    assert served["vocab_size"] == 257
    told = served["options"]
    assert {name: told[name] for name in args} == args
    assert (told["profile"], told["replicas"], told["device"]) == ("full", 2, "auto")
    assert served["build"]["device"] == "cpu"
    assert served["same_build"] is True
    for replica in status["replicas"].values():
        assert replica["build"] == served["build"]
        assert replica["weights"] == served["weights"] != ""
        assert replica["host"]
        assert replica["ip"]
        assert replica["settings"]["profile"] == "full"
    health = serving.get("/health").json()
    assert health["served"] == served
    assert health["replicas"] == health["replicas_expected"] == 2


async def test_settings_change_in_place_and_no_request_notices(serving: Configured) -> None:
    """Two changes and back under a running stream: same processes, same tokens, none lost."""
    pids = serving.pids()
    golden = await serving.answer()
    answers = [asyncio.ensure_future(serving.answer()) for _ in range(6)]
    await asyncio.sleep(0.05)
    serving.apply(profile="guard", failures_max=7, thresholds={"numerical.rms_dot": LIMIT})
    await asyncio.to_thread(
        wait_until,
        lambda: [one["failures_max"] for one in serving.settings()] == [7, 7],
        "the new settings",
    )
    assert serving.status()["profile"] == "guard"
    await asyncio.to_thread(
        wait_until,
        lambda: serving.status()["table"]["rms_norm"]["numerical"]["profile"] == "guard",
        "the live page's next reading",
    )
    assert all(one["thresholds"]["numerical.rms_dot"] == LIMIT for one in serving.settings())
    serving.apply(profile="full")
    for answer in await asyncio.gather(*answers):
        assert answer.outcome is Outcome.OK
        assert answer.tokens == golden.tokens
        assert len(answer.attempts) == 1
    await asyncio.to_thread(
        wait_until, lambda: serving.status()["profile"] == "full", "the old profile"
    )
    assert all(one["thresholds"] == {} for one in serving.settings())
    assert serving.pids() == pids


def test_the_switchboard_takes_the_token_of_the_environment(serving: Configured) -> None:
    """And no other; an order outranks the configured profile."""
    order = {"profile": "off", "ttl_s": 2.0, "reason": "a test"}
    path = "/health/checker_status"
    assert serving.post(path, order).status_code == 401
    answer = serving.post(path, order, authorization=f"Bearer {TOKEN}")
    assert answer.status_code == 200


def test_a_board_that_dies_is_made_anew_and_everything_goes_on(serving: Configured) -> None:
    """Ray restarts it; replicas are heard again, and orders are obeyed again, numbered from one."""
    board = ensure_board()
    life = ray.get(board.poll.remote("nobody", -1))["life"]
    pid = ray.get(board.pid.remote())
    os.kill(pid, signal.SIGKILL)

    def heard() -> bool:
        try:
            return len(serving.system.replicas()) == 2
        except EnvironmentFault:
            return False  # it is being started

    wait_until(heard, "the replicas on the new board")
    assert ray.get(board.poll.remote("nobody", -1))["life"] != life
    wait_until(lambda: serving.get("/health").json()["replicas"] == 2, "the gateway's fleet")
    order = {"profile": "guard", "ttl_s": 30.0, "reason": "after the crash"}
    path = "/health/checker_status"
    assert serving.post(path, order, authorization=f"Bearer {TOKEN}").status_code == 200
    wait_until(
        lambda: all(
            any(one["reason"] == "after the crash" for one in replica["switchboard"]["orders"])
            for replica in serving.status()["replicas"].values()
        ),
        "the order in force",
    )


def test_the_same_config_again_changes_nothing(serving: Configured, config: dict[str, Any]) -> None:
    """Deployed twice by a person or by a job that is run again."""
    pids = serving.pids()
    deploy_file(parse_serve_config(yaml.safe_dump(config)))
    assert serving.pids() == pids


async def test_a_wrong_user_config_is_shown_and_the_rest_goes_on(serving: Configured) -> None:
    """One replica at most is given up; the other answers by the old settings; a right one heals."""
    golden = await serving.answer()
    serving.apply(profile="guardian")

    def reason() -> str:
        return reason_of(serve.status().applications[APPLICATION])

    await asyncio.to_thread(wait_until, lambda: "guardian" in reason(), "the reason")
    assert "worker: user_config.profile: found 'guardian', expected" in reason()
    assert (await serving.answer()).tokens == golden.tokens
    serving.apply(profile="full", failures_max=4)
    await asyncio.to_thread(
        wait_until,
        lambda: [one["failures_max"] for one in serving.settings()] == [4, 4],
        "both replicas by the right settings",
    )


def test_wrong_arguments_end_in_one_line_of_serve_s_status(serving: Configured) -> None:
    """The running version goes on; the message has no traceback."""
    serving.apply({"slotz": 3})
    wait_until(
        lambda: serve.status().applications[APPLICATION].status == "DEPLOY_FAILED", "the refusal"
    )
    overview = serve.status().applications[APPLICATION]
    assert "Traceback" not in overview.message
    assert reason_of(overview).startswith("serve config: args.slotz: found an unknown key, expec")
    assert serving.get("/health").status_code == 200
