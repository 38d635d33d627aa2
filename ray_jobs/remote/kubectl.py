"""The kubectl on the PATH: one request a call, its answers as JSON, its refusals as one line."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.core.errors import EnvironmentFault

_TIMEOUT_S = 60.0
_LETTERS_MOST = 300
_NO_CONTEXT = ("does not exist", "no context", "context was not found")


class MissingError(EnvironmentFault):
    """What was asked for is not there."""


class ForbiddenError(EnvironmentFault):
    """The person may not do this."""


class UnreachableError(EnvironmentFault):
    """No answer from the cluster; it may come back."""


@dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl for one context and namespace.

    Attributes:
        namespace: empty: the context's own.
    """

    path: str
    context: str
    namespace: str = ""

    def words(self, *words: str) -> list[str]:
        """A whole command line."""
        where = ["--context", self.context]
        where += ["--namespace", self.namespace] if self.namespace else []
        return [self.path, *where, *words]

    def shown(self, *words: str) -> str:
        """A command line for a person to copy."""
        return " ".join(["kubectl", *self.words(*words)[1:]])

    def get(self, *words: str) -> dict[str, Any]:
        """`kubectl get … -o json`.

        Raises:
            MissingError, ForbiddenError, UnreachableError, EnvironmentFault: it was refused.
        """
        return self._json("get", *words, "-o", "json")

    def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """`kubectl create -f -`, of what is made of an object that this very server handed out:
        its schema need not be fetched to say that its fields are known.

        Raises:
            EnvironmentFault: it was refused.
        """
        return self._json(
            "create", "-f", "-", "--validate=false", "-o", "json", stdin=json.dumps(manifest)
        )

    def delete(self, kind: str, name: str) -> None:
        """Delete with the grace that the object's own pods ask for; does not wait.

        Raises:
            EnvironmentFault: it was refused; that it is gone already is no refusal.
        """
        self.run("delete", kind, name, "--ignore-not-found", "--wait=false")

    def run(self, *words: str, stdin: str | None = None) -> str:
        """Standard output of a call.

        Raises:
            EnvironmentFault: it was refused.
        """
        try:
            done = subprocess.run(
                self.words(f"--request-timeout={_TIMEOUT_S:.0f}s", *words),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=2 * _TIMEOUT_S,
                start_new_session=True,  # Ctrl-C in the terminal is ours to handle
            )
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                f"kubectl: context {self.context} did not answer within {2 * _TIMEOUT_S:.0f} s, "
                f"expected an answer to {self.shown(*words)}; look at the connection"
            ) from None
        if done.returncode:
            raise self.refusal(done.stderr, words)
        return done.stdout

    def refusal(self, stderr: str, words: Sequence[str]) -> EnvironmentFault:
        """What kubectl's words mean, as one line."""
        said = _one_line(stderr)
        lower = said.lower()
        asked = self.shown(*words)
        if "context" in lower and any(words in lower for words in _NO_CONTEXT):
            return EnvironmentFault(
                f"kubectl: there is no context {self.context!r} ({said}), expected one of "
                "`kubectl config get-contexts`; correct KUBE_CONTEXT"
            )
        if "unauthorized" in lower or "must be logged in" in lower:
            return EnvironmentFault(
                f"kubectl: context {self.context} does not know you any more ({said}); log in again"
            )
        if "getting credentials" in lower:
            return EnvironmentFault(
                f"kubectl: context {self.context} gets no credentials ({said}), expected its "
                "plugin to give some; install the plugin, or log in"
            )
        if "(notfound)" in lower:
            return MissingError(f"kubectl: {said} ({asked})")
        if "(forbidden)" in lower:
            return ForbiddenError(
                f"kubectl: context {self.context} may not do this: {said}; ask for the rights "
                "that docs/kubernetes.md lists for people who start chaos runs"
            )
        return UnreachableError(
            f"kubectl: context {self.context} answered {said or 'without a word'!r}, expected an "
            f"answer to {asked}; try that command"
        )

    def _json(self, *words: str, stdin: str | None = None) -> dict[str, Any]:
        text = self.run(*words, stdin=stdin)
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise EnvironmentFault(
                f"kubectl: {self.shown(*words)} answered {_one_line(text)!r}, expected JSON; "
                "is this kubectl a wrapper that prints more?"
            )
        return found


def find_kubectl(context: str, namespace: str) -> Kubectl:
    """The kubectl on the PATH, for a context.

    Raises:
        EnvironmentFault: there is none.
    """
    path = shutil.which("kubectl")
    if path is None:
        raise EnvironmentFault(
            "kubectl: not found on the PATH, expected it for KUBE_CONTEXT; install kubectl, or "
            "unset KUBE_CONTEXT to run on this machine"
        )
    return Kubectl(path, context, namespace)


def _one_line(text: str) -> str:
    line = " ".join(text.split()).removeprefix("error: ")
    return line if len(line) <= _LETTERS_MOST else f"{line[: _LETTERS_MOST - 3]}..."
