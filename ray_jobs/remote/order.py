"""What a caller asks another machine to run: the experiment's text and the words around it."""

import base64
from dataclasses import dataclass

from tocsin.chaos.spec_file import experiment_text, load_experiment
from tocsin.core.errors import SpecError
from tocsin.core.terms import Profile
from tocsin.ray_jobs.remote.archive import tocsin_version
from tocsin.ray_jobs.remote.delivery import CALLER

SPEC = "TOCSIN_SPEC"
SPEC_BYTES_MAX = 90 << 10
"""Linux takes 128 KiB as one variable of a process, and base64 makes four letters of three."""


@dataclass(frozen=True, slots=True)
class Order:
    """An experiment on its way.

    Attributes:
        source: as the person wrote it: a name or a file.
        name: of the experiment, for labels.
        text: of the file.
        seed, profile: instead of the file's; None: the file's.
        extra: further words for `tocsin chaos run`.
        dry_run: only the plan is wanted.
    """

    source: str
    name: str
    text: str
    seed: int | None
    profile: Profile | None
    extra: tuple[str, ...] = ()
    dry_run: bool = False

    def environment(self) -> dict[str, str]:
        """What the process over there finds in its environment."""
        return {
            SPEC: guarded_text(self.text),
            f"{SPEC}_NAME": self.source,
            CALLER: tocsin_version(),
        }

    def options(self) -> list[str]:
        """What follows the experiment on the command line."""
        words = ["--seed", str(self.seed)] if self.seed is not None else []
        words += ["--profile", str(self.profile)] if self.profile is not None else []
        words += ["--dry-run"] if self.dry_run else []
        return [*words, *self.extra]


def make_order(
    source: str,
    *,
    seed: int | None,
    profile: Profile | None,
    extra: tuple[str, ...] = (),
    dry_run: bool = False,
) -> Order:
    """Read an experiment as a local run would, so that a mistake in it never leaves this machine.

    Raises:
        SpecError: it cannot be read, is wrong, or is too long to travel.
    """
    experiment = load_experiment(source, seed=seed, profile=profile)
    _, text = experiment_text(source)
    if "\0" in text or len(text.encode()) > SPEC_BYTES_MAX:
        raise SpecError(
            f"{source}: holds {len(text.encode())} bytes, a text of at most {SPEC_BYTES_MAX} can "
            "be sent to another machine; shorten it, or build it into the image"
        )
    return Order(source, experiment.name, text, seed, profile, extra, dry_run)


def guarded_text(text: str) -> str:
    """A text that nobody on its way puts variables into: Ray and Kubernetes both know `$`."""
    if "$" not in text:
        return text
    return "base64:" + base64.b64encode(text.encode()).decode("ascii")
