"""From a run that failed to the smallest experiment that fails in the same way."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.chaos.plan import Occurrence, make_plan
from tocsin.chaos.spec import Experiment
from tocsin.chaos.store import spec_document
from tocsin.chaos.verdict import RunVerdict
from tocsin.core.errors import SpecError, TocsinError
from tocsin.ray_jobs.sim.ddmin import least, minimal_part
from tocsin.ray_jobs.sim.ending import Ending
from tocsin.ray_jobs.sim.experiment_file import with_occurrences, with_workload, write_experiment

TRIES, MINIMAL = "tries.jsonl", "minimal.yaml"
_WORKLOAD = ("requests", "concurrency", "max_new_tokens")


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop although something smaller may fail too.

    Attributes:
        minutes: of this machine's time; tries: runs, those of an earlier call not counted.
    """

    minutes: float = 30.0
    tries: int = 200


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What is left.

    Attributes:
        minimal: nothing more can be taken out; False: a limit came first.
        tried: runs that were made now; known: answers that an earlier call had left.
    """

    experiment: Experiment
    path: Path
    minimal: bool
    occurrences: int
    tried: int
    known: int


@dataclass(slots=True)
class Shrinker:
    """Tries parts of an experiment; every answer is kept in `folder`, so it can go on later.

    Attributes:
        judged: runs an experiment and judges it; the same experiment, the same verdict.
        ending: how the run failed that is to be understood.
        folder: of the answers and of the smallest experiment so far.
        say: told one line a try.
    """

    judged: Callable[[Experiment], RunVerdict]
    ending: Ending
    folder: Path
    limits: Limits = field(default_factory=Limits)
    say: Callable[[str], None] = lambda line: None
    now_s: Callable[[], float] = time.monotonic
    _answers: dict[str, bool] = field(default_factory=dict)
    _best: Experiment | None = None
    _tried: int = 0
    _known: int = 0
    _until_s: float = 0.0

    def shrink(self, experiment: Experiment) -> Shrunk:
        """Take occurrences out, then make the workload smaller, as long as it fails that way.

        Raises:
            SpecError: the whole experiment does not fail in this way.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._until_s = self.now_s() + 60.0 * self.limits.minutes
        self._read_answers()
        occurrences = make_plan(experiment).occurrences
        try:
            if not self._fails(experiment, "the whole plan"):
                raise SpecError(
                    f"shrink: in simulation {experiment.name} does not end in the same way "
                    f"({self.ending.words}); nothing was shrunk: replay it in the mode that it "
                    "ran in"
                )
            small = self._fewer_occurrences(experiment, occurrences)
            self._smaller_workload(small)
            minimal = True
        except _SpentError as spent:
            minimal = False
            self.say(f"stopping: {spent}; the same command goes on from here")
        best = self._best or experiment
        left = len(make_plan(best).occurrences) if best.faults else 0
        path = self.folder / MINIMAL
        return Shrunk(best, path, minimal, left, self._tried, self._known)

    def _fewer_occurrences(
        self, experiment: Experiment, occurrences: Sequence[Occurrence]
    ) -> Experiment:
        def fails(part: Sequence[Occurrence]) -> bool:
            words = f"{len(part)} of {len(occurrences)} occurrences"
            return self._fails(with_occurrences(experiment, part), words)

        return with_occurrences(experiment, minimal_part(occurrences, fails))

    def _smaller_workload(self, experiment: Experiment) -> None:
        for name in _WORKLOAD:

            def fails(value: int, name: str = name) -> bool:
                changed = with_workload(self._best or experiment, **{name: value})
                return self._fails(changed, f"{name} {value}")

            least(int(getattr(experiment.workload, name)), fails)

    def _fails(self, experiment: Experiment, words: str) -> bool:
        """Whether it fails in the way that is meant; asked once, then known."""
        key = self._key(experiment)
        if key in self._answers:
            self._known += 1
            found, said = self._answers[key], "as known"
        else:
            found, said = self._try(experiment)
            self._answers[key] = found
            line = json.dumps({"key": key, "fails": found, "what": words, "said": said})
            with (self.folder / TRIES).open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        outcome = "fails in the same way" if found else "does not"
        self.say(f"try {self._tried}: {words}: {outcome} ({said})")
        if found:
            self._best = experiment
            self._write(experiment)
        return found

    def _try(self, experiment: Experiment) -> tuple[bool, str]:
        """Run it.

        Raises:
            _SpentError: a limit came first.
        """
        if self._tried >= self.limits.tries:
            raise _SpentError(f"{self._tried} tries were made")
        if self.now_s() >= self._until_s:
            raise _SpentError(f"{self.limits.minutes:g} minutes are over")
        self._tried += 1
        try:
            verdict = self.judged(experiment)
        except TocsinError as error:  # it could not even begin: not the failure that is meant
            return False, str(error)
        return self.ending.of(verdict), verdict.sentence

    def _key(self, experiment: Experiment) -> str:
        facts = [self.ending.property_id, str(self.ending.conclusion), spec_document(experiment)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]

    def _write(self, experiment: Experiment) -> None:
        comment = (
            f"The smallest experiment so far in which {self.ending.words}.",
            "Made by `tocsin chaos shrink`; run it with `tocsin chaos run FILE --sim`.",
        )
        write_experiment(self.folder / MINIMAL, experiment, comment)

    def _read_answers(self) -> None:
        path = self.folder / TRIES
        if not path.is_file():
            return
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                told = json.loads(line)
                self._answers[str(told["key"])] = bool(told["fails"])
            except (ValueError, KeyError, TypeError):
                continue  # cut off when the last call was killed: it is tried again


class _SpentError(Exception):
    """A limit was reached; the message says which."""
