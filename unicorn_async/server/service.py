"""What every transport shares: the model, the responses under way and those finished."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import EngineClosedError
from unicorn_async.server.access import Access
from unicorn_async.server.active_response import ActiveResponse
from unicorn_async.server.background_answers import name_taken
from unicorn_async.server.fitting import fitted, with_recommended
from unicorn_async.server.generation import QueueWait
from unicorn_async.server.key_renewal import KeyRenewal
from unicorn_async.server.ledger import Ledger, input_ledger
from unicorn_async.server.metrics import Metrics
from unicorn_async.server.presence import while_present
from unicorn_async.server.prompts import PLAIN, Prompts
from unicorn_async.server.protocol.call_items import check_calls
from unicorn_async.server.protocol.compaction import with_summaries
from unicorn_async.server.protocol.errors import ApiError
from unicorn_async.server.protocol.messages import merge_system
from unicorn_async.server.protocol.response_object import ResponseState, ResponseStatus
from unicorn_async.server.request_context import asking
from unicorn_async.server.responses import Responses
from unicorn_async.server.step_watch import StepWatchers
from unicorn_async.server.tool_plan import ToolPlan, responses_answer, with_grammar
from unicorn_async.server.truncation import fitting_prompt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Sequence

    from unicorn_async.engine.types import EngineAPI, Token
    from unicorn_async.sampling_params import SamplingParams
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.model_host import ModelHost
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.server.store import LocalStore
    from unicorn_async.server.tracing import Tracing
    from unicorn_async.tokenizer import ChatMessage

DRAINING_RETRY_S = 5  # for the next server to be there
TELL_TIMEOUT_S = 1.0  # at the end, for websockets' clients to be told


class Service:
    """The requests of one server, from whatever transport they come. Made once a server, used in its loop alone."""

    def __init__(self, models: ModelHost, options: ServerOptions) -> None:
        self.models = models
        self.options = options
        self.access = Access(options)
        self.keys = KeyRenewal(options, self.access)
        self.responses = Responses(options)
        self.watchers = StepWatchers()
        self.prompts = Prompts()
        self.input_bytes = input_ledger(options)
        self._telling: set[asyncio.Future[None]] = set()  # each done with its block
        self._requests = Ledger(options.max_client_requests, what="requests under way", code="too_many_requests")
        self.metrics = Metrics()
        self.tracing: Tracing | None = None  # while the server runs, if spans are wanted
        self.is_draining = False

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold what the service needs while the server runs."""
        self.prompts.begin()
        if self.options.otlp_endpoint is not None:
            from unicorn_async.server.tracing import Tracing

            self.tracing = await asyncio.to_thread(Tracing.to, self.options.otlp_endpoint)
        try:
            async with self.keys.running():
                yield
        finally:
            await self.responses.close()
            if self.tracing is not None:
                await asyncio.to_thread(self.tracing.close)
            self.prompts.close()

    async def drain(self) -> None:
        """Refuse further requests, and wait until no answer is under way."""
        self.is_draining = True
        model = self.models.state.model
        if model is not None:
            await model.idle()

    async def stop(self) -> None:
        """End every answer under way with an error, those that wait for a model or for their prompt too, and refuse
        further ones; slow clients, and a disk, are waited for but for a moment."""
        cause = EngineClosedError("the server is shutting down")
        self.responses.archive.end()
        self.prompts.end(cause)
        await self.models.stop(cause)
        if self._telling:
            await asyncio.wait(self._telling, timeout=TELL_TIMEOUT_S)

    @contextmanager
    def telling(self) -> Generator[None]:
        """Have `stop` wait, for a moment at most, for the end of this block, in which a client is told something."""
        ended = asyncio.get_running_loop().create_future()
        self._telling.add(ended)
        try:
            yield
        finally:
            self._telling.discard(ended)
            ended.set_result(None)

    async def open_response(
        self, request: ResponsesRequest, *, stream_id: str | None = None, local: LocalStore | None = None
    ) -> ActiveResponse:
        """Check a request against the model and hand it over; `close_response` has to follow. Waits for a model that is
        on its way.

        `local` is a connection's own store: what it did with `store` false can go on there.

        Raises:
            UnicornError: refused; nothing is left behind.
        """
        model = await self.model(request.model)
        if request.store:
            await self.responses.archive.admit()
        engine = model.engine
        conversation = await self.responses.earlier(request.previous_response_id, local) + request.messages
        check_calls(conversation, "input")
        plan = ToolPlan.of(engine.tokenizer, request.tools.use)
        guided = await with_grammar(model, plan, request)
        prompt = await self._prompt(engine, request, conversation)
        wanted = with_recommended(self.options, engine, guided, request.left_out)
        sampling = fitted(self.options, engine, prompt, wanted, request.max_output_tokens)
        state = ResponseState(
            id=request.response_id or f"{self.options.response_names}{secrets.token_hex(16)}",
            model=engine.model_name,
            request=request,
            sampling=sampling,
            input_tokens=len(prompt),
        )
        splitter = plan.splitter(request.reasoning, engine.tokenizer, prompt, request.format)
        answer = responses_answer(plan, state, engine.tokenizer, stream_id=stream_id, splitter=splitter)
        generation = await self.generate(model, prompt, sampling, state.id) if request.generate else None
        if generation is not None:
            generation.refusal = partial(plan.refusal, request.format)
        active = ActiveResponse(answer, generation, conversation, asking.get().name)
        self.responses.active[active.id] = active
        return active

    async def run_response(self, active: ActiveResponse, emit: Callable[[str], Awaitable[None]]) -> None:
        """Send a response's events, from the first to the last."""
        if active.generation is not None:
            await active.generation.run(active.answer, emit)
            return
        state = active.answer.state
        for event in active.answer.begin():
            await emit(event)
        state.finish(ResponseStatus.COMPLETED)
        await emit(active.answer.final())

    async def close_response(self, active: ActiveResponse, *, local: LocalStore | None = None) -> None:
        """End what is left of a response, and keep it if it is to be kept.

        Its places are given back before it is on disk, unless the disk is far behind.
        """
        self.responses.active.pop(active.id, None)
        entry = active.entry()
        is_stored = entry is not None and active.answer.state.request.store
        if entry is not None:
            if local is not None:
                local.put(entry)
            if is_stored:
                self.responses.keep(entry)
        if active.generation is not None:
            await active.generation.close()
        if is_stored:
            await self.responses.archive.room()
        if active.is_deleted and active.answer.state.request.background:
            # What was there for the next server; who deletes may have gone. A disk that fails is logged.
            with suppress(ApiError):
                await self.responses.archive.remove(active.id)

    async def open_background(self, request: ResponsesRequest, lease: Lease | None = None) -> BackgroundAnswer:
        """Check a request and begin its answer, which then runs by itself and is closed at its end.

        `lease` is what the request holds, to be given back then.

        Raises:
            UnicornError: refused; nothing is left behind.
        """
        client, name = asking.get().name, request.response_id
        with ExitStack() as held:
            if lease is not None:
                held.callback(lease.release)
            if name is not None:
                await self.responses.recall(name)
                if self.responses.store.get(name) is not None:
                    raise name_taken(name)
            with self.responses.background.opening(request, client) as place:
                active = await self.open_response(request)
                given = held.pop_all()

                async def close() -> None:
                    with given:
                        await self.close_response(active)

                if self.responses.archive.is_on_disk:  # what is told of it if this server ends before it does
                    self.responses.archive.keep(active.cut_short(), is_begun=True)
                run = partial(self.run_response, active)
                return self.responses.background.start(active, run, close, place, client)

    async def cancel_background(self, response_id: str) -> bool:
        """End a background answer without waiting for that; return whether one of this name is under way."""
        return self.responses.cancel_background(response_id)

    async def input_tokens(self, request: ResponsesRequest) -> int:
        """Return how many tokens the prompt of a request has; raises as `open_response` does."""
        model = await self.model(request.model)
        conversation = await self.responses.earlier(request.previous_response_id) + request.messages
        return len(await self._prompt(model.engine, request, conversation))

    async def _prompt(
        self, engine: EngineAPI, request: ResponsesRequest, conversation: Sequence[ChatMessage]
    ) -> list[int]:
        options = replace(PLAIN.beside(request.reasoning.variables(engine.tokenizer)), use=request.tools.use)
        encode = partial(self.prompts.encode_chat, engine.tokenizer, options=options)
        messages = merge_system(request.instructions, with_summaries(conversation))
        if not request.truncate:
            return await encode(messages, max_context=engine.max_context)
        limit = request.max_output_tokens or self.options.default_max_tokens
        return await fitting_prompt(messages, encode, engine.max_context, limit)

    async def generate(
        self,
        model: ServedModel,
        prompt: list[int],
        sampling: SamplingParams,
        request_id: str,
        prediction: Sequence[int] = (),
        *,
        place: Lease | None = None,
    ) -> Generation:
        """Hand a prompt to the engine; the generation's `close` has to follow. `place` is one of `places`.

        Raises:
            UnicornError: it is refused.
        """
        engine, client = model.engine, asking.get()
        given = engine.stream(
            prompt,
            sampling,
            request_id=request_id,
            client=client.name,
            cache_salt=client.cache_salt,
            prediction=prediction,
        )
        stream = self.metrics.timed(given, len(prompt))
        if self.tracing is not None:
            stream = self.tracing.traced(stream, engine.model_name, request_id, len(prompt), sampling)
        return await self.begin(model, stream, request_id, place)

    async def begin(
        self, model: ServedModel, stream: AsyncGenerator[Token, None], request_id: str, place: Lease | None = None
    ) -> Generation:
        """Begin an engine's stream, which has this name there, for who asks; otherwise as `generate`."""
        lease, options = self.places(1)[0] if place is None else place, self.options
        queue = QueueWait(partial(model.engine.is_waiting, request_id), options.queue_timeout_s)
        return await model.generate(stream, keepalive_s=options.keepalive_s, queue=queue, on_close=lease.release)

    def check_open(self) -> None:
        """Raise an ApiError, 503, if the server is about to end, and takes nothing more."""
        if self.is_draining:
            raise ApiError("the server is about to end", status=503, code="draining", retry_s=DRAINING_RETRY_S)

    async def model(self, name: str | None = None) -> ServedModel:
        """Return the model to answer a request with; waits for one on its way, as long as who asks is there.

        Raises:
            ApiError, EngineClosedError: as `check_open` and the host's `model`; 503, the wait is too long.
            ClientGoneError: who asks has gone.
        """
        self.check_open()
        if self.models.state.is_open:
            return await self.models.model(name)
        limit_s = self.options.queue_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                return await while_present(self.models.model(name))
        except TimeoutError:
            message = f"the request has waited {limit_s:g} s for the model to be opened"
            raise ApiError(message, status=503, code="queue_timeout") from None

    def places(self, number: int) -> list[Lease]:
        """Claim places for so many requests of who asks, all or none; who has claimed one gives it back.

        Raises:
            ApiError: 429, the client has no such room; 503, the server is about to end.
        """
        self.check_open()
        client = asking.get()
        return self._requests.claim_each(client.name, number, limit=client.max_requests)
