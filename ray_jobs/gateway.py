"""The HTTP front: OpenAI-compatible, honest about health, with the switchboard and metrics."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any, cast

import ray
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from ray import serve
from ray.serve.handle import DeploymentHandle
from transformers import AutoConfig, AutoTokenizer

from tocsin.checker.inspect import inspect
from tocsin.checker.switchboard import SwitchOrder
from tocsin.core.errors import CapacityError, EnvironmentFault, SpecError
from tocsin.core.history import EventKind
from tocsin.core.ids import new_ulid
from tocsin.core.requests import Finish, TokenEvent
from tocsin.core.requests import Request as Generation
from tocsin.ray_jobs.admission import WAITING_PER_SLOT, Admission, CrowdedError
from tocsin.ray_jobs.answers import DONE, Answer, answer_headers, sse_error, why_refused
from tocsin.ray_jobs.backlog import SLOW_CLIENT, Backlogs, Peer
from tocsin.ray_jobs.bodies import ChatBody, CompletionBody, error_body
from tocsin.ray_jobs.exposition import page
from tocsin.ray_jobs.fleet import GATEWAY, FleetView
from tocsin.ray_jobs.gateway_meter import AnswerTimes, GatewayMeter
from tocsin.ray_jobs.hub import ensure_hub
from tocsin.ray_jobs.hub_client import HubClient
from tocsin.ray_jobs.idempotency import KEY, Replays
from tocsin.ray_jobs.live.status import ServedFacts, checker_status, live_feed
from tocsin.ray_jobs.options import ServeOptions
from tocsin.ray_jobs.places import node_folder, spans_folder
from tocsin.ray_jobs.prompting import Detokeniser, Prompting, StopText
from tocsin.ray_jobs.replica_process import prepare
from tocsin.ray_jobs.resume import Call, Resumer, Routed
from tocsin.ray_jobs.routes import documents, hooks, live, refusals, templates
from tocsin.ray_jobs.routes.bearer import unauthorised
from tocsin.ray_jobs.tracing import names
from tocsin.ray_jobs.tracing.gateway import GatewayTraces, Untraced, asked
from tocsin.ray_jobs.tracing.pipeline import KEPT_PER_S, Tracing

_PROBE_EVERY_S = 3.0
_HEALTHY_S = 10.0
"""A token must have left within this time, for a user or for a probe."""
_DEADLINE_S = 120.0
_DEFAULT_MAX_TOKENS = 64

# Serve copies `app` with its routes when the class below is declared: what they call must exist by
# then, so it is imported.
app = FastAPI(title="Tocsin", version="1", docs_url=None, redoc_url=None)
app.include_router(documents.router)
app.include_router(hooks.router)
app.include_router(live.router)
refusals.install(app)


@serve.deployment(name=GATEWAY)
@serve.ingress(app)
class Gateway:
    """Takes requests in, follows their tokens from replica to replica, says how all are."""

    def __init__(
        self, options: ServeOptions, worker: DeploymentHandle[Any], token: str | None
    ) -> None:
        """Load the tokenizer and begin to follow the fleet.

        Args:
            token: bearer token of `POST /health/checker_status`; empty: switching is refused;
                None: what `TOCSIN_TOKEN` says here.
        """
        prepare()
        path = options.folder()
        vocab_size = int(AutoConfig.from_pretrained(path, local_files_only=True).vocab_size)
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        self._options = options
        self._prompting = Prompting(tokenizer, vocab_size, options.max_length)
        self.token = os.environ.get("TOCSIN_TOKEN", "") if token is None else token
        self._fleet = FleetView(options.replicas)
        self._served = ServedFacts(options, vocab_size)
        self._meter = GatewayMeter(node_folder(), options.served_name)
        self._hubs = HubClient()
        ensure_hub(ray.get_runtime_context().get_node_id())
        streaming = worker.options(stream=True, method_name="generate")
        self._resumer = Resumer(
            cast("Call", streaming.remote), self._fleet.is_stale, self._fleet.broken, self._resumed
        )
        self._tracing = Tracing(spans_folder(), "gateway", per_s=KEPT_PER_S)
        self._traces = GatewayTraces(self._tracing)
        self._replays = Replays(self._meter.replayed)
        self._backlogs = Backlogs(self._meter.backlog)
        self._admission = Admission(self._room)
        self._token_s = float("-inf")
        self.live = live_feed(
            options, self._fleet, self._hubs, self._token_age, switchable=bool(self.token)
        )
        tasks = [self._fleet.follow_for_ever(), self._fleet.count_for_ever(), self.live.run()]
        tasks += [self._probe_for_ever(), self._backlogs.watch_for_ever()]
        self._tasks = [asyncio.ensure_future(one) for one in tasks]

    @property
    def board(self) -> Any:
        """The board's handle, for the routes that order something there."""
        return self._fleet.board

    def __del__(self) -> None:
        """Serve takes the gateway down: the last traces are written."""
        if hasattr(self, "_tracing"):  # there is none when the constructor failed
            self._tracing.close(1.0)

    # --- generation ---

    @app.post("/v1/chat/completions")
    async def chat(self, body: ChatBody, request: Request) -> Response:
        """A chat completion, whole or as server-sent events."""
        prompt_ids = await templates.read(self._prompting, body, request, self._fleet.tell)
        schema = body.response_format.schema_to_check() if body.response_format else None
        max_tokens = body.max_completion_tokens or body.max_tokens
        return await self._generate(body, request, prompt_ids, max_tokens, schema)

    @app.post("/v1/completions")
    async def complete(self, body: CompletionBody, request: Request) -> Response:
        """A completion of plain text or of token ids."""
        prompt = body.prompt
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            prompt_ids = await self._prompting.read_text(prompt)
        else:
            prompt_ids = tuple(int(token) for token in prompt)
        return await self._generate(body, request, prompt_ids, body.max_tokens, None)

    async def _generate(
        self,
        body: ChatBody | CompletionBody,
        http: Request,
        prompt_ids: tuple[int, ...],
        max_tokens: int | None,
        schema: dict[str, Any] | None,
    ) -> Response:
        request_id = http.headers.get("x-request-id") or f"req-{new_ulid()}"
        room = self._options.max_length - len(prompt_ids)
        max_tokens = max_tokens or max(1, min(_DEFAULT_MAX_TOKENS, room))
        operation = names.CHAT if isinstance(body, ChatBody) else names.TEXT_COMPLETION
        wish = asked(
            body.model,
            len(prompt_ids),
            max_tokens,
            body.sampling(self._prompting.vocab_size),
            stream=bool(body.stream),
        )
        served = self._options.served_name
        # One whose answer is kept for others is no stream of this client alone.
        peer = http.client if KEY not in http.headers else None

        async def make() -> Response:
            with self._traces.begin(operation, served, request_id, http.headers, wish) as trace:
                response = await self._answer(
                    body, request_id, prompt_ids, max_tokens, schema, trace, peer
                )
                return trace.answered(response)

        asked_for = body.model_dump_json().encode()
        return await self._replays.answer(http.headers, http.url.path, asked_for, make)

    async def _answer(
        self,
        body: ChatBody | CompletionBody,
        request_id: str,
        prompt_ids: tuple[int, ...],
        max_tokens: int,
        schema: dict[str, Any] | None,
        trace: Untraced,
        peer: Peer | None,
    ) -> Response:
        times = self._meter.arrived()
        complaint = self._prompting.complaint(prompt_ids, max_tokens)
        if complaint is None and body.model not in (self._options.served_name, self._options.model):
            served = self._options.served_name
            return self._reject(404, f"model: found {body.model!r}, served is {served!r}")
        if complaint is not None:
            return self._reject(400, complaint)
        generation = Generation(
            request_id=request_id,
            prompt_ids=prompt_ids,
            max_new_tokens=max_tokens,
            sampling=body.sampling(self._prompting.vocab_size),
            stop_ids=self._prompting.stop_ids,
            ignore_eos=body.ignore_eos,
        )
        answer = Answer(
            request_id=request_id,
            model=self._options.served_name,
            chat=isinstance(body, ChatBody),
            prompt_tokens=len(prompt_ids),
            stop_ids=() if body.ignore_eos else self._prompting.stop_ids,
            detokeniser=Detokeniser(self._prompting.tokenizer),
            stop_text=StopText(body.stop_texts()),
            trace=trace,
        )
        events = self._timed(generation, times, answer)
        times.taken(len(prompt_ids))
        try:
            first = await anext(events)
            if body.stream and schema is None:
                usage = body.stream_options is None or body.stream_options.include_usage
                return StreamingResponse(
                    self._stream(answer, first, events, peer, usage=usage),
                    media_type="text/event-stream",
                    headers=answer_headers(first.event.degraded),
                )
            return await self._whole(answer, first, events, schema, stream=body.stream)
        except SpecError as error:
            return self._reject(400, str(error))
        except CapacityError as error:
            after_s = error.retry_after_s if isinstance(error, CrowdedError) else 1
            return self._reject(429, str(error), {"retry-after": str(after_s)})
        except EnvironmentFault as error:
            trace.failed("unavailable", str(error))
            body_ = error_body(str(error), "server_error", "unavailable")
            return JSONResponse(body_, status_code=503, headers={"retry-after": "1"})

    async def _timed(
        self, generation: Generation, times: AnswerTimes, answer: Answer
    ) -> AsyncIterator[Routed]:
        """The events of a request, timed and counted."""
        outcome = "aborted"
        try:
            with self._admission.seat(generation.request_id):
                async for routed in self._resumer.stream(generation, _DEADLINE_S, answer.trace):
                    event = routed.event
                    answer.trace.hear(event)
                    if isinstance(event, TokenEvent):
                        self._token_s = time.monotonic()
                        times.token(verified=event.verified, exemplar=answer.trace.exemplar())
                    else:
                        outcome = "ok" if event.finish.complete else "failed"
                        outcome = "refused" if event.finish is Finish.REFUSED else outcome
                    yield routed
        except EnvironmentFault:
            outcome = "failed"
            raise
        except (SpecError, CapacityError):
            outcome = ""  # never begun; who catches it counts it as rejected
            raise
        finally:
            if answer.stop_text.found and outcome == "aborted":
                outcome = "ok"
                answer.trace.stopped()
            if outcome:
                self._meter.ended(outcome)
                times.ended(answer.trace.exemplar(), whole=outcome != "aborted")

    async def _stream(
        self,
        answer: Answer,
        first: Routed,
        events: AsyncIterator[Routed],
        peer: Peer | None,
        *,
        usage: bool,
    ) -> AsyncIterator[bytes]:
        """Server-sent events; an error in the middle is said, and the stream ends without DONE."""
        try:
            routed = first
            with self._backlogs.reading(peer) as reader:
                while isinstance(routed.event, TokenEvent):
                    yield answer.chunk(answer.add(routed.event, routed.attempts), routed.event)
                    if reader.stuck:
                        await self._drop(answer, reader.backlog_bytes)
                        yield sse_error(reader.why, SLOW_CLIENT, None)
                        return
                    routed = await self._next(answer, routed, events)
            ending = routed.event
            rest = answer.end(ending, routed.attempts)
            if ending.finish.complete:
                yield answer.last_chunk(rest, ending, usage=usage)
                yield DONE
            else:
                yield sse_error(why_refused(ending), str(ending.finish), ending.failure_id)
        except EnvironmentFault as error:
            answer.trace.failed("unavailable", str(error))
            yield sse_error(str(error), "unavailable", None)
        finally:
            await events.aclose()  # type: ignore[attr-defined]

    async def _whole(
        self,
        answer: Answer,
        first: Routed,
        events: AsyncIterator[Routed],
        schema: dict[str, Any] | None,
        *,
        stream: bool,
    ) -> Response:
        """The answer in one piece; with a schema it leaves only if it follows it."""
        routed = first
        chunks = []
        while isinstance(routed.event, TokenEvent):
            chunks.append(answer.chunk(answer.add(routed.event, routed.attempts), routed.event))
            routed = await self._next(answer, routed, events)
        ending = routed.event
        rest = answer.end(ending, routed.attempts)
        headers = answer_headers(answer.degraded)
        if not ending.finish.complete:
            body = error_body(
                why_refused(ending), "server_error", str(ending.finish), ending.failure_id
            )
            return JSONResponse(body, status_code=500, headers=headers)
        if schema is not None:
            verdict = inspect("structured_output", text=answer.text, json_schema=schema)
            if not verdict.ok:
                finding = verdict.findings[0]
                await self._tell_failed(answer, finding.check, finding.message)
                body = error_body(finding.message, "server_error", "structured_output")
                return JSONResponse(body, status_code=502, headers=headers)
        if stream:
            pieces = [*chunks, answer.last_chunk(rest, ending, usage=True), DONE]
            return Response(b"".join(pieces), media_type="text/event-stream", headers=headers)
        return JSONResponse(answer.whole(ending), headers=headers)

    async def _next(self, answer: Answer, routed: Routed, events: AsyncIterator[Routed]) -> Routed:
        """The next event; an answer that has come to a stop text ends, here and at its replica."""
        ending = answer.stopped()
        if ending is None:
            return await anext(events)
        await events.aclose()  # type: ignore[attr-defined]
        return Routed(ending, routed.attempts)

    def count_rejected(self) -> None:
        """A request was refused before it was understood."""
        self._meter.ended("rejected")

    def _reject(
        self, status: int, message: str, headers: dict[str, str] | None = None
    ) -> JSONResponse:
        self.count_rejected()
        body = error_body(message, "invalid_request_error")
        return JSONResponse(body, status_code=status, headers=headers)

    # --- what people and machines ask ---

    @app.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        """The one model that is served."""
        one = {"id": self._options.served_name, "object": "model", "owned_by": "tocsin"}
        return {"object": "list", "data": [one]}

    @app.get("/health")
    async def health(self) -> Response:
        """Ok only if a token really left lately, for a user or for a probe."""
        age_s = time.monotonic() - self._token_s
        ok = age_s <= _HEALTHY_S
        body = {
            "status": "ok" if ok else "failing",
            "last_token_age_s": round(age_s, 3) if age_s < 1e9 else None,
            "replicas": self._fleet.serving(),
            "replicas_expected": self._fleet.expected,
            "served": self._served.told(self._fleet),
        }
        return JSONResponse(body, status_code=200 if ok else 503)

    @app.get("/health/checker_status")
    async def checker_status(self) -> dict[str, Any]:
        """What is checked where: a table by operator and layer, orders, and each replica."""
        return await checker_status(self.live, self._served, self._fleet)

    @app.post("/health/checker_status")
    async def switch(self, order: SwitchOrder, request: Request) -> Response:
        """Switch a layer, an operator or everything to a profile, for a while and with a reason."""
        if (refusal := unauthorised(request, self.token)) is not None:
            return refusal
        revision = await self.board.switch.remote(order.model_dump(mode="json", exclude_none=True))
        return JSONResponse({"accepted": order.model_dump(mode="json"), "revision": revision})

    @app.get("/metrics")
    async def metrics(self, request: Request) -> Response:
        """Every series of the whole cluster; OpenMetrics with exemplars for who asks for it."""
        numbers = await self._hubs.numbers(await self.board.hubs.remote())
        body, content_type = page(numbers, request.headers.get("accept", ""))
        return Response(body, headers={"content-type": content_type})

    # --- the fleet ---

    def _token_age(self) -> float | None:
        age_s = time.monotonic() - self._token_s
        return age_s if age_s < 1e9 else None

    def _room(self) -> int:
        """Requests that the replicas can hold, those that are expected back soon too."""
        return max(self._fleet.expected, 1) * self._options.slots * (1 + WAITING_PER_SLOT)

    async def _drop(self, answer: Answer, backlog_bytes: int) -> None:
        """A client does not read: its stream ends, and the fleet's log says so."""
        self._meter.dropped_client()
        answer.trace.failed(SLOW_CLIENT, "its client does not read")
        data = {"backlog_bytes": backlog_bytes, "tokens": len(answer.tokens), "replica": "client"}
        await self._fleet.tell(EventKind.CLIENT_DROPPED, answer.request_id, data)

    async def _resumed(self, request_id: str, tokens: int, why: str) -> None:
        data = {"tokens": tokens, "why": why}
        await self._fleet.tell(EventKind.REQUEST_RESUMED, request_id, data)

    async def _tell_failed(self, answer: Answer, check: str, message: str) -> None:
        findings = [{"check": check, "message": message, "priority": "P1", "layer": "semantic"}]
        data = {
            "failure_id": new_ulid(),
            "trace_id": answer.trace.trace_id,
            "findings": findings,
            "request_ids": [answer.request_id],
        }
        answer.trace.check_failed(data)
        await self._fleet.tell(EventKind.CHECK_FAILED, answer.request_id, data)

    async def _probe_for_ever(self) -> None:
        """Generate one token when nobody else did lately."""
        while True:
            if time.monotonic() - self._token_s > _PROBE_EVERY_S:
                await self._probe()
            await asyncio.sleep(0.5)

    async def _probe(self) -> None:
        probe = Generation(f"probe-{new_ulid()}", self._prompting.text("Hello"), 1)
        with contextlib.suppress(EnvironmentFault, CapacityError, ray.exceptions.RayError):
            async for routed in self._resumer.stream(probe, _HEALTHY_S):
                if isinstance(routed.event, TokenEvent):
                    self._token_s = time.monotonic()
