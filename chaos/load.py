"""The load: honest requests drawn from the seed, sent at their pace, recorded client-side."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tocsin.chaos.case import Prompt
from tocsin.chaos.contract import faults
from tocsin.chaos.faults.batch.malformed import PATH as MALFORMED_PATH
from tocsin.chaos.faults.batch.malformed import ServedModel
from tocsin.chaos.plan import Occurrence
from tocsin.chaos.spec import Experiment
from tocsin.core.clock import Clock
from tocsin.core.draw import draw_below, draw_choice, draw_exponential, draw_unit
from tocsin.core.errors import SpecError
from tocsin.core.history import Outcome, RequestRecord
from tocsin.core.system import LoadRequest, System

PROMPTS = Path(__file__).parent / "prompts"
CHAT_PATH = "/v1/chat/completions"
_SLICE_S = 0.02


def load_prompts(source: str, *, canaries: bool) -> dict[str, Prompt]:
    """A prompt set by id.

    Args:
        source: `builtin/<name>`, or the path of a JSON list of {id, text, canary}.
        canaries: put each prompt's canary word in front of it.

    Raises:
        SpecError: there is no such set, or it is not such a list.
    """
    builtin = source.startswith("builtin/")
    path = PROMPTS / f"{source.removeprefix('builtin/')}.json" if builtin else Path(source)
    known = ", ".join(f"builtin/{found.stem}" for found in sorted(PROMPTS.glob("*.json")))
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        prompts = [Prompt(str(r["id"]), str(r["text"]), str(r.get("canary", ""))) for r in rows]
    except OSError:
        raise SpecError(
            f"workload.prompts: found {source!r}, no such prompt set; known are {known}"
        ) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise SpecError(
            f"workload.prompts: {path} is not a JSON list of objects with id, text and canary "
            f"({error!r}); correct it"
        ) from None
    if not prompts or len({one.id for one in prompts}) != len(prompts):
        raise SpecError(f"workload.prompts: {path} is empty or uses an id twice; correct it")
    if not canaries:
        return {one.id: Prompt(one.id, one.text, "") for one in prompts}
    return {
        one.id: Prompt(
            one.id, f"Code word {one.canary}. {one.text}" if one.canary else one.text, one.canary
        )
        for one in prompts
    }


def golden_requests(spec: Experiment, prompts: Mapping[str, Prompt]) -> list[LoadRequest]:
    """One request a prompt: those whose answers are the golden ones."""
    return [
        chat_request(spec, prompt, f"golden-{prompt.id}", stream=False)
        for prompt in prompts.values()
    ]


def warmup_requests(spec: Experiment, prompts: Mapping[str, Prompt]) -> list[LoadRequest]:
    """The first requests, sent before any fault: they must all be right."""
    chosen = list(prompts.values())
    return [
        chat_request(spec, chosen[i % len(chosen)], f"w{i:04d}", stream=True)
        for i in range(spec.steady_state.warmup)
    ]


def honest_request(spec: Experiment, prompts: Mapping[str, Prompt], index: int) -> LoadRequest:
    """The request of an index; it depends on the seed and the index alone."""
    work, seed = spec.workload, spec.seed
    prompt = prompts[draw_choice(sorted(prompts), seed, "load", index, "prompt")]
    cancel_after = None
    if work.max_new_tokens > 1 and draw_unit(seed, "load", index, "abort") < work.abort_ratio:
        cancel_after = 1 + draw_below(work.max_new_tokens - 1, seed, "load", index, "abort after")
    # A client that does not stream sees nothing to cancel after.
    streams = draw_unit(seed, "load", index, "stream") < work.stream_ratio
    return chat_request(
        spec,
        prompt,
        f"r{index:05d}",
        stream=streams or cancel_after is not None,
        cancel_after=cancel_after,
    )


def malformed_request(one: Occurrence, facts: Mapping[str, Any], spec: Experiment) -> LoadRequest:
    """The request that a CLIENT fault sends.

    Args:
        facts: what the system says of itself: `model`, `vocab_size`, `max_length`.
    """
    served = ServedModel(
        name=str(facts.get("model", spec.system.model)),
        vocab_size=int(facts.get("vocab_size", 2**31 - 1)),
        max_length=int(facts.get("max_length", spec.system.max_length)),
    )
    kind = str(one.params.get("kind", ""))
    others = {name: value for name, value in one.params.items() if name != "kind"}
    body = faults()[one.kind].inject(kind, served, **others)
    return LoadRequest(
        request_id=f"m-{one.id}",
        prompt_id="",
        path=CHAT_PATH if "messages" in body else MALFORMED_PATH,
        body=body,
        stream=bool(body.get("stream", False)),
        max_new_tokens=int(body.get("max_tokens", 1)),
        malformed=kind or one.kind,
    )


def chat_request(
    spec: Experiment,
    prompt: Prompt,
    request_id: str,
    *,
    stream: bool,
    cancel_after: int | None = None,
) -> LoadRequest:
    """A well-formed request of the workload's length."""
    body = {
        "model": spec.system.model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": spec.workload.max_new_tokens,
        "temperature": 0,
        "stream": stream,
    }
    return LoadRequest(
        request_id=request_id,
        prompt_id=prompt.id,
        path=CHAT_PATH,
        body=body,
        stream=stream,
        max_new_tokens=spec.workload.max_new_tokens,
        cancel_after=cancel_after,
    )


@dataclass(slots=True)
class Load:
    """Sends requests at the pace of the workload until it is told to stop.

    Attributes:
        more: asked when the workload's own requests are sent: whether to go on.
        sent: honest requests begun so far: the logical clock `request`.
    """

    spec: Experiment
    system: System
    prompts: Mapping[str, Prompt]
    clock: Clock
    more: Callable[[], bool] = lambda: False
    sent: int = 0
    records: dict[str, RequestRecord] = field(default_factory=dict)
    requests: dict[str, LoadRequest] = field(default_factory=dict)
    _stopped: bool = False
    _consuming: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    _left: set[str] = field(default_factory=set)

    def stop(self) -> None:
        """Begin no further request; those under way go on."""
        self._stopped = True

    @property
    def stopped(self) -> bool:
        """Nothing more is sent: it was told to stop, or all is sent and nobody wants more."""
        return self._stopped

    def leave(self, request_id: str) -> bool:
        """Give a request up now, as its client: the connection is cut; whether it was under way."""
        task = self._consuming.get(request_id)
        if task is None or task.done():
            return False
        self._left.add(request_id)
        return task.cancel()

    async def run(self) -> None:
        """Send until the workload is sent and nobody wants more; then wait for the last end."""
        if self.spec.workload.arrival == "closed":
            clients = [self._client() for _ in range(self.spec.workload.concurrency)]
            await asyncio.gather(*clients)
        else:
            await self._poisson()

    async def send(self, request: LoadRequest) -> RequestRecord:
        """Send one request and record what its client sees, until its end or its deadline."""
        self.requests[request.request_id] = request
        record = RequestRecord(
            request_id=request.request_id,
            prompt_id=request.prompt_id,
            t_invoke_ns=self.clock.now_ns(),
            stream=request.stream,
            max_new_tokens=request.max_new_tokens,
            malformed=request.malformed,
        )
        self.records[request.request_id] = record
        deadline_s = self.spec.workload.deadline_s
        consuming = asyncio.ensure_future(self._consume(request))
        self._consuming[request.request_id] = consuming
        try:
            await asyncio.wait_for(consuming, deadline_s)
        except TimeoutError:
            self._end(request, Outcome.INFO, f"no end within {deadline_s:g} s")
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if request.request_id not in self._left or (me is not None and me.cancelling()):
                self._end(request, Outcome.INFO, "the run was stopped")
                raise
            self._end(request, Outcome.CANCELLED, "")
        except Exception as error:  # noqa: BLE001 - whatever breaks the connection is an outcome
            self._end(request, Outcome.INFO, f"{type(error).__name__}: {error}")
        finally:
            del self._consuming[request.request_id]
        return self.records[request.request_id]

    async def _consume(self, request: LoadRequest) -> None:
        """Take the growing record as it comes; cancel where the request says so."""
        stream = self.system.send(request)
        cancelled = False
        try:
            async for record in stream:
                self.records[request.request_id] = record
                enough = request.cancel_after is not None
                enough = enough and len(record.chunks) >= (request.cancel_after or 0)
                if enough and record.outcome is Outcome.OPEN:
                    cancelled = True
                    break
        finally:
            close = getattr(stream, "aclose", None)
            if close is not None:
                await close()
        if cancelled:
            self._end(request, Outcome.CANCELLED, "", force=True)

    def _end(
        self, request: LoadRequest, outcome: Outcome, error: str, *, force: bool = False
    ) -> None:
        record = self.records[request.request_id]
        if force or record.outcome is Outcome.OPEN:
            record.outcome = outcome
            record.error = error
            record.t_end_ns = self.clock.now_ns()

    def _next(self) -> LoadRequest | None:
        """The next request, None when there is to be none."""
        if self._stopped:
            return None
        if self.sent >= self.spec.workload.requests and not self.more():
            self._stopped = True
            return None
        request = honest_request(self.spec, self.prompts, self.sent)
        self.sent += 1
        return request

    async def _client(self) -> None:
        """One client of a closed load: the next request when the last one has ended."""
        while (request := self._next()) is not None:
            await self.send(request)

    async def _poisson(self) -> None:
        """Open arrivals; beyond `concurrency` a request waits for its turn."""
        room = asyncio.Semaphore(self.spec.workload.concurrency)
        tasks: set[asyncio.Task[None]] = set()

        async def one(request: LoadRequest) -> None:
            try:
                await self.send(request)
            finally:
                room.release()

        due_ns = self.clock.now_ns()
        while True:
            mean_s = 1.0 / self.spec.workload.rate
            due_ns += int(draw_exponential(mean_s, self.spec.seed, "arrival", self.sent) * 1e9)
            while not self._stopped and (left_ns := due_ns - self.clock.now_ns()) > 0:
                await asyncio.sleep(min(left_ns / 1e9, _SLICE_S))
            await room.acquire()
            request = self._next()
            if request is None:
                room.release()
                break
            task = asyncio.create_task(one(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)
