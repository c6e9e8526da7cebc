"""What every transport shares: the model, the responses under way and those finished."""

from __future__ import annotations

import asyncio
import json
import secrets
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from unicorn_async.errors import EngineClosedError, ParameterError, PromptTooLongError
from unicorn_async.server.access import Access
from unicorn_async.server.active_response import ActiveResponse
from unicorn_async.server.archive import Archive
from unicorn_async.server.background_answers import BackgroundAnswers, name_taken
from unicorn_async.server.generation import QueueWait
from unicorn_async.server.ledger import Ledger
from unicorn_async.server.metrics import Metrics
from unicorn_async.server.prompts import PLAIN, Prompts
from unicorn_async.server.protocol.call_items import check_calls
from unicorn_async.server.protocol.compaction import with_summaries
from unicorn_async.server.protocol.encoding import encode_object
from unicorn_async.server.protocol.errors import ApiError, unknown_response
from unicorn_async.server.protocol.messages import merge_system
from unicorn_async.server.protocol.response_object import ResponseState, ResponseStatus
from unicorn_async.server.protocol.sampling import recommended
from unicorn_async.server.request_context import asking
from unicorn_async.server.step_watch import StepWatchers
from unicorn_async.server.store import ResponseStore
from unicorn_async.server.tool_plan import ToolPlan, responses_answer, with_grammar
from unicorn_async.server.truncation import fitting_prompt

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from unicorn_async.config import SamplingParams
    from unicorn_async.engine.types import EngineAPI, Token
    from unicorn_async.server.background_answers import BackgroundAnswer
    from unicorn_async.server.generation import Generation
    from unicorn_async.server.ledger import Lease
    from unicorn_async.server.model_host import ModelHost
    from unicorn_async.server.options import ServerOptions
    from unicorn_async.server.protocol.responses_request import ResponsesRequest
    from unicorn_async.server.protocol.retrieval import Retrieval
    from unicorn_async.server.served_model import ServedModel
    from unicorn_async.server.store import LocalStore, StoredResponse
    from unicorn_async.server.tracing import Tracing
    from unicorn_async.tokenizer import ChatMessage

DRAINING_RETRY_S = 5  # for the next server to be there


class Service:
    """The requests of one server, from whatever transport they come. Made once a server, used in its loop alone."""

    def __init__(self, models: ModelHost, options: ServerOptions) -> None:
        self.models = models
        self.options = options
        self.access = Access(options)
        self.store = ResponseStore(options.max_stored, options.max_stored_chars)
        self.archive = Archive(self.store, options)
        self.background = BackgroundAnswers(options)
        self.watchers = StepWatchers()
        self.prompts = Prompts()
        self.input_bytes = Ledger(
            options.max_client_input_bytes, what="bytes of requests under way", code="too_much_input"
        )
        self._requests = Ledger(options.max_client_requests, what="requests under way", code="too_many_requests")
        self.metrics = Metrics()
        self.tracing: Tracing | None = None  # while the server runs, if spans are wanted
        self.is_draining = False
        self._active: dict[str, ActiveResponse] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold what the service needs while the server runs."""
        self.prompts.begin()
        if self.options.otlp_endpoint is not None:
            from unicorn_async.server.tracing import Tracing

            self.tracing = await asyncio.to_thread(Tracing.to, self.options.otlp_endpoint)
        try:
            yield
        finally:
            await self.background.close()
            await self.archive.close()
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
        """End every answer under way with an error, and refuse further ones; slow clients are not waited for long."""
        await self.models.stop(EngineClosedError("the server is shutting down"))

    async def open_response(
        self, request: ResponsesRequest, *, stream_id: str | None = None, local: LocalStore | None = None
    ) -> ActiveResponse:
        """Check a request against the model and hand it over; `close_response` has to follow. Waits for a model that is
        on its way.

        `local` is a connection's own store: what it did with `store` false can go on there.

        Raises:
            UnicornError: refused; nothing is left behind.
        """
        model = await self.models.model(request.model)
        engine = model.engine
        conversation = await self.earlier(request.previous_response_id, local) + request.messages
        check_calls(conversation, "input")
        plan = ToolPlan.of(engine.tokenizer, request.tools.use)
        guided = await with_grammar(model, plan, request)
        prompt = await self._prompt(engine, request, conversation)
        wanted = self.with_recommended(engine, guided, request.left_out)
        sampling = self.fit(engine, prompt, wanted, request.max_output_tokens)
        state = ResponseState(
            id=request.response_id or f"{self.options.response_names}{secrets.token_hex(16)}",
            model=engine.model_name,
            request=request,
            sampling=sampling,
            input_tokens=len(prompt),
        )
        thinks = plan.may_think(request.format)
        splitter = request.reasoning.splitter(engine.tokenizer, prompt) if thinks else None
        answer = responses_answer(plan, state, engine.tokenizer, stream_id=stream_id, splitter=splitter)
        generation = await self.generate(model, prompt, sampling, state.id) if request.generate else None
        active = ActiveResponse(answer, generation, conversation, asking.get().name)
        self._active[active.id] = active
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
        self._active.pop(active.id, None)
        entry = active.entry()
        is_stored = entry is not None and active.answer.state.request.store
        if entry is not None:
            if local is not None:
                local.put(entry)
            if is_stored:
                self.store.put(entry)
                self.archive.keep(entry)
        if active.generation is not None:
            await active.generation.close()
        if is_stored:
            await self.archive.room()

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
                await self.archive.recall(name)
                if self.store.get(name) is not None:
                    raise name_taken(name)
            with self.background.opening(request, client) as place:
                active = await self.open_response(request)
                given = held.pop_all()

                async def close() -> None:
                    with given:
                        await self.close_response(active)

                return self.background.start(active, partial(self.run_response, active), close, place, client)

    async def resume(self, response_id: str, place: Retrieval) -> BackgroundAnswer:
        """Return a background answer that has the events of a place, or will have them.

        Waits for one that is about to begin, as `cancel` and `delete` do.

        Raises:
            ApiError: 404, no such response; 400, it has no such events, or its events are not kept.
        """
        await self.background.opened(response_id)
        answer = self._own_background(response_id)
        if answer is None:
            self.find(response_id)
            message = f"response {response_id!r} has no events to send again: only those of background answers are kept"
            raise ApiError(message, code="events_not_kept", param="response_id")
        answer.log.check(place)
        return answer

    def replay(self, response_id: str) -> list[str]:
        """Return the events of a response that has ended, made again from its object.

        Raises:
            ApiError: 404, no such response; 400, it is under way.
        """
        from unicorn_async.server.protocol.replay import replayed

        body: dict[str, object] = json.loads(self.find(response_id))
        if body["status"] == ResponseStatus.IN_PROGRESS.value:
            message = f"response {response_id!r} is under way: its events go to who asked for it, until it has ended"
            raise ApiError(message, code="events_not_kept", param="response_id")
        return replayed(body)

    async def delete(self, response_id: str) -> None:
        """Forget a response; one that is under way is ended, and not kept.

        Raises:
            ApiError: 404, no such response.
        """
        await self.background.opened(response_id)
        await self.archive.recall(response_id)
        self.find(response_id)
        active = self._active.pop(response_id, None)
        if active is not None:
            active.is_deleted = True
            if active.generation is not None:
                active.generation.cancel()
        answer = self._own_background(response_id)
        if answer is not None:
            await answer.log.ended()
            self.background.forget(response_id)
        await self.archive.remove(response_id)

    async def cancel_background(self, response_id: str) -> bool:
        """End a background answer without waiting for that; return whether one of this name is under way."""
        active = self._own_active(response_id)
        if active is None or active.generation is None or self._own_background(response_id) is None:
            return False
        active.generation.cancel()
        return True

    async def cancel(self, response_id: str) -> str:
        """End a response under way and return its object as JSON; a finished one is returned as it is.

        Raises:
            ApiError: 404, no such response.
        """
        await self.background.opened(response_id)
        active = self._own_active(response_id)
        if active is None:
            return self.find(response_id)
        if active.generation is not None:
            active.generation.cancel()
            await active.generation.ended()
        return encode_object(active.answer.state.to_json())

    def find(self, response_id: str) -> str:
        """Return a response's object as JSON, under way or finished.

        Raises:
            ApiError: 404, no such response.
        """
        active = self._own_active(response_id)
        if active is not None:
            return encode_object(active.answer.state.to_json())
        stored = self._own_stored(response_id)
        if stored is not None:
            return stored.body
        kept = self._own_background(response_id)
        if kept is None:
            raise unknown_response(response_id, "response_not_found", "response_id")
        return kept.body

    async def holds(self, response_id: str) -> bool:
        """Whether anybody has a response of this name, under way, kept or about to begin."""
        await self.background.opened(response_id)
        await self.archive.recall(response_id)
        return response_id in self._active or bool(self.store.get(response_id) or self.background.get(response_id))

    def _own_active(self, response_id: str) -> ActiveResponse | None:
        found = self._active.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    def _own_stored(self, response_id: str) -> StoredResponse | None:
        found = self.store.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    def _own_background(self, response_id: str) -> BackgroundAnswer | None:
        found = self.background.get(response_id)
        return found if found is not None and asking.get().sees(found.owner) else None

    async def input_tokens(self, request: ResponsesRequest) -> int:
        """Return how many tokens the prompt of a request has; raises as `open_response` does."""
        model = await self.models.model(request.model)
        conversation = await self.earlier(request.previous_response_id) + request.messages
        return len(await self._prompt(model.engine, request, conversation))

    def inputs(self, response_id: str) -> tuple[ChatMessage, ...]:
        """Return the conversation that a response was made from.

        Raises:
            ApiError: 404, no such response, or no more of it than its object.
        """
        active = self._own_active(response_id)
        if active is not None:
            return active.conversation
        stored = self._own_stored(response_id)
        if stored is None:
            raise unknown_response(response_id, "response_not_found", "response_id")
        return stored.messages[: stored.num_inputs]

    async def earlier(self, response_id: str | None, local: LocalStore | None = None) -> tuple[ChatMessage, ...]:
        """Return the conversation up to the end of the response that a request names as the previous one, if it does.

        Raises:
            ApiError: 400, no such response.
        """
        if response_id is None:
            return ()
        await self.archive.recall(response_id)
        stored = local.get(response_id) if local is not None else None
        stored = stored or self._own_stored(response_id)
        if stored is None and (active := self._own_active(response_id)) and active.answer.state.request.store:
            stored = active.entry()  # its client has got all of it, and asked on before it was closed
        if stored is None:
            raise unknown_response(response_id, "previous_response_not_found", "previous_response_id", status=400)
        return stored.messages

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

    def with_recommended(self, engine: EngineAPI, sampling: SamplingParams, left_out: frozenset[str]) -> SamplingParams:
        """Return the sampling parameters with the model's own where a request leaves some out, if these are wanted."""
        if not self.options.recommended_sampling:
            return sampling
        return recommended(sampling, left_out, engine.recommended_sampling)

    def fit(self, engine: EngineAPI, prompt: list[int], sampling: SamplingParams, limit: int | None) -> SamplingParams:
        """Return the sampling parameters with the answer's limit, at most what the context has room for.

        Raises:
            PromptTooLongError: there is room for none.
            ParameterError: it is to be longer than that.
        """
        room = engine.max_context - len(prompt)
        if room < 1:
            context = engine.max_context
            raise PromptTooLongError(
                f"the prompt has {len(prompt)} tokens; a context of {context} has no room for an answer to it"
            )
        wanted = limit if limit is not None else self.options.default_max_tokens
        most = room if wanted is None else min(wanted, room)
        if sampling.min_tokens > most:
            raise ParameterError("min_tokens", f"the answer has at most {most} tokens, got {sampling.min_tokens}")
        return replace(sampling, max_tokens=most)

    async def generate(
        self,
        model: ServedModel,
        prompt: list[int],
        sampling: SamplingParams,
        request_id: str,
        prediction: Sequence[int] = (),
    ) -> Generation:
        """Hand a prompt to the engine; the generation's `close` has to follow.

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
        return await self.begin(model, stream, request_id)

    async def begin(self, model: ServedModel, stream: AsyncGenerator[Token, None], request_id: str) -> Generation:
        """Begin an engine's stream, which has this name there, for who asks; raises as `generate`."""
        if self.is_draining:
            raise ApiError("the server is about to end", status=503, code="draining", retry_s=DRAINING_RETRY_S)
        client, options = asking.get(), self.options
        lease = self._requests.claim(client.name, limit=client.max_requests)
        queue = QueueWait(partial(model.engine.is_waiting, request_id), options.queue_timeout_s)
        return await model.generate(stream, keepalive_s=options.keepalive_s, queue=queue, on_close=lease.release)
