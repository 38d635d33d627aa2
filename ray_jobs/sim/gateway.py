"""The simulated front: bodies, resuming and answers by the gateway's own code, without HTTP."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import ValidationError
from ray.exceptions import RayError

from tocsin.core.errors import CapacityError, EnvironmentFault, SpecError
from tocsin.core.history import Chunk, Event, EventKind, Outcome, RequestRecord
from tocsin.core.requests import FinishEvent, Request, TokenEvent
from tocsin.core.system import LoadRequest
from tocsin.ray_jobs.answers import Answer, why_refused
from tocsin.ray_jobs.bodies import ChatBody, CompletionBody, validation_message
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.prompting import Detokeniser, Prompting, StopText
from tocsin.ray_jobs.resume import Resumer, Routed
from tocsin.ray_jobs.sim.fleet import Fleet
from tocsin.ray_jobs.sim.replica import Message, Replica, is_gone

_DEADLINE_S = 120.0
_DEFAULT_MAX_TOKENS = 64
_LOOK_S = 0.1
_CHAT = "/v1/chat/completions"


class ReplicaDied(RayError):  # noqa: N818 - a statement
    """What Ray would raise at a stream whose actor is gone."""


class _Stream:
    """One call of a replica; implements `resume.Stream`."""

    def __init__(self, fleet: Fleet, data: Message) -> None:
        self._fleet, self._data = fleet, data
        self._replica: Replica | None = None
        self._queue: asyncio.Queue[Message] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if self._queue is None:
            self._queue = await self._open()
        message = await self._queue.get()
        if is_gone(message):
            raise ReplicaDied
        return message

    async def _open(self) -> "asyncio.Queue[Message]":
        name = str(self._data["request_id"])
        await asyncio.sleep(
            self._fleet.pace.drawn(self._fleet.pace.hop_s, self._fleet.seed, name, "hop")
        )
        while (chosen := self._fleet.choose(name)) is None:
            await asyncio.sleep(_LOOK_S)
        self._replica = chosen
        return chosen.open(self._data)

    def cancel(self) -> None:
        if self._replica is not None:
            self._replica.cancel(str(self._data["request_id"]))


@dataclass(slots=True)
class _RejectedError(Exception):
    """A request that is refused before it is admitted."""

    status: int
    message: str


@dataclass(slots=True)
class Gateway:
    """Takes a request in and writes down what its client would see."""

    fleet: Fleet
    options: ServeOptions
    prompting: Prompting
    _resumer: Resumer = field(init=False)

    def __post_init__(self) -> None:
        """The gateway's own resumer, on simulated streams."""
        self._resumer = Resumer(
            lambda data: _Stream(self.fleet, data), self.fleet.is_stale, self._broken, self._resumed
        )

    async def send(self, request: LoadRequest) -> AsyncIterator[RequestRecord]:
        """One request; the record grows at each token and ends once."""
        record = RequestRecord(
            request_id=request.request_id,
            prompt_id=request.prompt_id,
            t_invoke_ns=self._now_ns(),
            stream=request.stream,
            max_new_tokens=request.max_new_tokens,
            malformed=request.malformed,
        )
        await self._hop(request, "there")
        try:
            generation, answer = self._read(request)
            events = self._resumer.stream(generation, _DEADLINE_S)
            try:
                async for routed in events:
                    if self._take(record, answer, routed):
                        yield record
            finally:
                await events.aclose()  # type: ignore[attr-defined]
        except _RejectedError as error:
            _fail(record, error.status, error.message)
        except SpecError as error:
            _fail(record, 400, str(error))
        except CapacityError as error:
            _fail(record, 429, str(error))
        except EnvironmentFault as error:
            _fail(record, record.http_status or 503, str(error))
        await self._hop(request, "back")
        if not record.stream and record.outcome is Outcome.OK:
            record.t_first_ns = self._now_ns()
            for chunk in record.chunks:
                chunk.t_ns = record.t_first_ns
        record.t_end_ns = self._now_ns()
        if record.outcome is Outcome.OPEN:
            record.outcome, record.error = Outcome.INFO, "the stream ended without an ending"
        yield record

    def _read(self, request: LoadRequest) -> tuple[Request, Answer]:
        """The request as workers get it, and its answer's beginning.

        Raises:
            _RejectedError: it cannot be served.
        """
        chat = request.path == _CHAT
        try:
            body: ChatBody | CompletionBody
            body = (ChatBody if chat else CompletionBody).model_validate(request.body)
        except ValidationError as error:
            raise _RejectedError(400, validation_message(error.errors())) from None
        prompt_ids, most = self._prompt(body, request.request_id)
        room = self.options.max_length - len(prompt_ids)
        most = most or max(1, min(_DEFAULT_MAX_TOKENS, room))
        complaint = self.prompting.complaint(prompt_ids, most)
        if complaint is not None:
            raise _RejectedError(400, complaint)
        if body.model not in (self.options.served_name, self.options.model):
            served = self.options.served_name
            raise _RejectedError(404, f"model: found {body.model!r}, served is {served!r}")
        generation = Request(
            request_id=request.request_id,
            prompt_ids=prompt_ids,
            max_new_tokens=most,
            sampling=body.sampling(self.prompting.vocab_size),
            stop_ids=self.prompting.stop_ids,
            ignore_eos=body.ignore_eos,
        )
        answer = Answer(
            request_id=request.request_id,
            model=self.options.served_name,
            chat=chat,
            prompt_tokens=len(prompt_ids),
            stop_ids=() if body.ignore_eos else self.prompting.stop_ids,
            detokeniser=Detokeniser(self.prompting.tokenizer),
            stop_text=StopText(body.stop_texts()),
            created_s=0,
        )
        return generation, answer

    def _prompt(
        self, body: ChatBody | CompletionBody, request_id: str
    ) -> tuple[tuple[int, ...], int | None]:
        """Token ids of a body, and how many it asks for."""
        if isinstance(body, ChatBody):
            messages = [message.plain() for message in body.messages]
            try:
                prompt_ids = self.prompting.chat(messages)
            except SpecError as error:
                raise _RejectedError(400, str(error)) from None
            found = list(self.prompting.control_tokens(messages))
            if found:
                self._tell(EventKind.PROMPT_ESCAPED, request_id, control_tokens=found)
            return prompt_ids, body.max_completion_tokens or body.max_tokens
        prompt: Any = body.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return self.prompting.text(prompt), body.max_tokens
        return tuple(int(token) for token in prompt), body.max_tokens

    def _take(self, record: RequestRecord, answer: Answer, routed: Routed) -> bool:
        """One event of an answer; whether the client sees a token now."""
        event, now_ns = routed.event, self._now_ns()
        if not record.http_status:
            record.http_status = 200
            record.degraded_header = ", ".join(event.degraded) if record.stream else ""
        record.attempts = routed.attempts
        if isinstance(event, TokenEvent):
            piece = answer.add(event, routed.attempts)
            text = piece if record.stream else ""
            record.chunks.append(Chunk(now_ns, event.index, event.token, text))
            record.text, record.degraded = answer.text, answer.degraded
            if record.stream:
                record.t_first_ns = record.t_first_ns or now_ns
            return record.stream
        self._finish(record, answer, event, routed.attempts)
        return False

    def _finish(
        self, record: RequestRecord, answer: Answer, event: FinishEvent, attempts: tuple[str, ...]
    ) -> None:
        answer.end(event, attempts)
        record.text, record.degraded = answer.text, answer.degraded
        if not record.stream:
            record.degraded_header = ", ".join(answer.degraded)
        if event.finish.complete:
            record.terminals += 1
            record.finish_reason = str(event.finish)
            record.usage_tokens = len(answer.tokens)
            record.outcome = Outcome.OK
            return
        if not record.stream:
            record.http_status, record.chunks, record.text = 500, [], ""
        record.failure_id = event.failure_id or ""
        refused = str(event.finish) in ("refused", "error") or bool(record.failure_id)
        _fail(record, record.http_status, why_refused(event), refused=refused)

    async def _broken(self, replica: str, why: str) -> None:
        self.fleet.lost(replica, why)

    async def _resumed(self, request_id: str, tokens: int, why: str) -> None:
        self._tell(EventKind.REQUEST_RESUMED, request_id, tokens=tokens, why=why)

    def _tell(self, kind: EventKind, request_id: str, **data: Any) -> None:
        self.fleet.tell(Event(kind, self._now_ns(), "gateway", -1, request_id, data=data))

    async def _hop(self, request: LoadRequest, way: str) -> None:
        pace = self.fleet.pace
        await asyncio.sleep(pace.drawn(pace.hop_s, self.fleet.seed, request.request_id, way))

    def _now_ns(self) -> int:
        return self.fleet.clock.now_ns()


def _fail(record: RequestRecord, status: int, message: str, *, refused: bool = False) -> None:
    """An explicit error; without a 4xx or a refusal the client cannot know what became of it."""
    record.http_status = status
    record.error = message
    record.terminals += 1
    rejected = 400 <= status < 500
    record.outcome = Outcome.FAIL if rejected or refused else Outcome.INFO
