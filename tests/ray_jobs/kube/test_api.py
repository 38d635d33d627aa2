"""What is asked of an API server over real HTTP, and the one line in which each failure ends."""

import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.ray_jobs.kube.fake_api import NAMESPACE, FakeApi
from tocsin.core.errors import ChaosForbidden, EnvironmentFault, TocsinError
from tocsin.ray_jobs.kube.api import (
    Account,
    KubeApi,
    KubeConflict,
    KubeUnreachable,
    account_of_environment,
)

HERE = f"/api/v1/namespaces/{NAMESPACE}"


def test_an_object_is_read_with_the_accounts_token(client: KubeApi, server: FakeApi) -> None:
    """The server refuses any other token, so an answer shows that this one was sent."""
    found = client.get(HERE)
    assert found is not None
    assert found["metadata"]["name"] == NAMESPACE
    assert client.get(f"{HERE}/pods/nobody") is None


def test_a_token_that_was_replaced_is_read_anew(
    client: KubeApi, server: FakeApi, folder: Path
) -> None:
    """The kubelet writes a new one before the old one ends: no restart, no failed request."""
    assert client.get(HERE) is not None
    server.token = "the next token"
    (folder / "token").write_text("the next token")
    assert client.get(HERE) is not None


def test_a_token_that_is_replaced_in_that_moment_gets_a_second_try(
    client: KubeApi, server: FakeApi
) -> None:
    """The old token was read, and the server knows only the new one: one 401, then it works."""
    server.fail("GET", HERE, (401, {"message": "expired"}))
    assert client.get(HERE) is not None
    assert server.asked == [("GET", HERE)] * 2


@pytest.mark.parametrize(
    ("answers", "kind", "words"),
    [
        ([(401, {"message": "no"})] * 2, ChaosForbidden, ("401", "token")),
        (
            [(403, {"message": "cannot get resource"})],
            ChaosForbidden,
            ("403", "cannot get resource", "chaos Role"),
        ),
        ([(409, {"message": "modified"})], KubeConflict, ("another version", "modified")),
        ([(500, {"message": "etcd is gone"})], KubeUnreachable, ("500", "etcd is gone")),
        ([(503, "<html>\nbusy</html>")], KubeUnreachable, ("503", "<html> busy")),
        ([(200, "not JSON")], KubeUnreachable, ("no JSON object", "proxy")),
        ([(200, ["a list"])], KubeUnreachable, ("no JSON object",)),
        ([1.0], KubeUnreachable, ("no answer in 0.5 s", "network policy")),
    ],
    ids=["401", "403", "409", "500", "503", "text", "list", "slow"],
)
def test_every_failure_is_one_line_that_says_what_to_do(
    client: KubeApi,
    server: FakeApi,
    answers: list[Any],
    kind: type[TocsinError],
    words: tuple[str, ...],
) -> None:
    """Where, what was found, what was expected, what to do; never a traceback of a library."""
    server.fail("GET", HERE, *answers)
    with pytest.raises(kind) as caught:
        client.get(HERE)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"kubernetes: GET {HERE}: ")
    assert all(word in text for word in words), text


def test_a_server_that_is_not_there_is_one_line_too(folder: Path) -> None:
    """Nobody listens on port 9 of this machine."""
    folder.mkdir()
    (folder / "token").write_text("t")
    api = KubeApi(Account("http://127.0.0.1:9", folder), timeout_s=0.5)
    with pytest.raises(KubeUnreachable, match=r"the API server at http://127\.0\.0\.1:9"):
        api.get(HERE)
    api.close()


def test_what_is_written_to_an_object_that_is_gone_is_an_error(
    client: KubeApi, server: FakeApi
) -> None:
    """A deletion of nothing is none: what is wanted is so already."""
    with pytest.raises(EnvironmentFault, match="found nothing there"):
        client.put(f"{HERE}/pods/nobody", {})
    assert client.delete(f"{HERE}/pods/nobody", {}) is False


@pytest.mark.parametrize("missing", ["token", "ca.crt"])
def test_an_account_without_its_files_names_the_setting(folder: Path, missing: str) -> None:
    """A pod with automountServiceAccountToken: false has none of them."""
    folder.mkdir()
    url = "https://127.0.0.1:9" if missing == "ca.crt" else "http://127.0.0.1:9"
    with pytest.raises(EnvironmentFault, match=f"{missing} cannot be read.*automount"):
        KubeApi(Account(url, folder)).get(HERE)


def test_a_certificate_that_is_none_is_told(folder: Path) -> None:
    """The file is there and says something else."""
    folder.mkdir()
    (folder / "ca.crt").write_text("hello")
    with pytest.raises(EnvironmentFault, match="holds no certificate"):
        KubeApi(Account("https://127.0.0.1:9", folder))


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.1.0.1"}, "https://10.1.0.1:443"),
        (
            {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"},
            "https://[fd00::1]:6443",
        ),
        (
            {"KUBERNETES_SERVICE_HOST": "10.1.0.1", "TOCSIN_KUBE_API": "http://127.0.0.1:1/"},
            "http://127.0.0.1:1",
        ),
    ],
    ids=["no pod", "pod", "IPv6", "named"],
)
def test_the_environment_of_a_pod_names_the_server(
    settings: dict[str, str], url: str | None
) -> None:
    """Outside Kubernetes there is none, and that is no error."""
    account = account_of_environment(settings)
    assert (account.url if account else None) == url


def test_the_server_must_be_signed_by_the_clusters_authority(folder: Path, tmp_path: Path) -> None:
    """TLS with the account's ca.crt: the right one is believed, another one is not."""
    folder.mkdir()
    (folder / "token").write_text("t")
    server = _tls_server(tmp_path, "server")
    url = f"https://127.0.0.1:{server.server_address[1]}"
    (folder / "ca.crt").write_text((tmp_path / "server.crt").read_text())
    assert KubeApi(Account(url, folder)).get(HERE) == {"kind": "Namespace"}
    _certificate(tmp_path, "other")
    (folder / "ca.crt").write_text((tmp_path / "other.crt").read_text())
    with pytest.raises(KubeUnreachable, match="certificate verify failed"):
        KubeApi(Account(url, folder)).get(HERE)
    server.shutdown()
    server.server_close()


def _certificate(folder: Path, name: str) -> None:
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    words += ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext"]
    words += ["subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.crt"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)


def _tls_server(folder: Path, name: str) -> HTTPServer:
    _certificate(folder, name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"kind": "Namespace"}')

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda request, address: None  # type: ignore[method-assign, assignment]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
