"""One call: messages become a prompt, the engine samples, the step is stored, and only then is the answer complete."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from stepwell.engines.base import Conversation, Engine, Generation
from stepwell.errors import ContextOverflow, ForkRefused, InvalidRequest, PoolError
from stepwell.gateway.callers import Caller
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects.base import ChatCall, Delta, Event, Started
from stepwell.gateway.origin import CHOICE_MARK, Origin
from stepwell.gateway.problems import UnknownModel
from stepwell.gateway.recall import Recall
from stepwell.gateway.redact import Redactor
from stepwell.gateway.reply import Draft, Prompt, Source, replayed
from stepwell.gateway.retries import Attempt, Attempts
from stepwell.gateway.sessions import Session, Sessions, side_of
from stepwell.pool.base import Pool, Receipt
from stepwell.rendering.bridge import Asked, Bridged, bridge, bridge_ids, bridge_text, seen
from stepwell.rendering.pieces import pieces_of
from stepwell.rendering.renderer import Renderer
from stepwell.types import Annotation, FinishReason, Record, Sampling, Step, new_id

_LONG_BODY: Final = 16_384
"""Bytes of a call from which on it is rendered in a thread, so that streams are not held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Turn:
    """A call in its place: everything that its choices share."""

    call: ChatCall
    caller: Caller
    asked: Asked
    session: Session
    attempt: Attempt


class Exchange:
    """Plays calls against one engine and records them in one pool."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        pool: Pool,
        sessions: Sessions,
        recall: Recall,
        config: GatewayConfig,
        redact: Redactor,
        stored: Callable[[Step, int], None] = lambda _step, _cached: None,
        stored_failed: Callable[[], None] = lambda: None,
    ) -> None:
        """Join the parts; nothing starts until `play`.

        `stored` hears of each step, with its reused prompt tokens, `stored_failed` of each that the pool did not take.
        """
        self._engine = engine
        self._renderer = renderer
        self._pool = pool
        self._sessions = sessions
        self._recall = recall
        self._config = config
        self._redact = redact
        self._stored = stored
        self._stored_failed = stored_failed
        self._attempts = Attempts()

    async def play(self, call: ChatCall, caller: Caller) -> AsyncGenerator[Event, None]:
        """Yield, for each choice, one Started, any number of Delta, and one Answer, whose step is durable by then.

        Closing the generator or cancelling its task stops the engine. Tokens sampled up to there, or up to an engine's
        failure, are stored as a step with finish_reason `abort`.

        Raises:
            UnknownModel: the call names another model than the engine's.
            InvalidRequest: it refers to an answer that is not here, or asks for what cannot be honoured.
            ContextOverflow: the prompt leaves no room for an answer.
            Conflict: the trajectory has ended.
            ForkRefused: a forked agent did not ask what was recorded.
            EngineError: sampling failed.
            PoolError: the step could not be stored.
        """
        self.check_model(call.model)
        asked = await self._recall.asked(call, caller.trajectory_id if caller.confined else None)
        attempt, earlier = self._attempts.begin(call, caller)
        with attempt:
            if earlier is not None:
                await earlier.settled()
                if earlier.step_ids:
                    attempt.steps, attempt.trajectory_id = earlier.steps, earlier.trajectory_id
                    for event in await asyncio.to_thread(self._replayed, call, attempt):
                        yield event
                    return
            if len(call.body) > _LONG_BODY:
                await asyncio.to_thread(lambda: asked.keys)  # computed once, and not while streams wait
            again = earlier.trajectory_id if earlier else ""
            async with self._sessions.use(caller, call, asked, again) as session:
                attempt.trajectory_id = session.info.id
                turn = _Turn(call=call, caller=caller, asked=asked, session=session, attempt=attempt)
                prompt = await self._prompt(turn)
                if session.origin is not None:
                    attempt.steps = await self._recorded(session, session.origin, prompt, call)
                if attempt.steps:
                    for event in await asyncio.to_thread(self._replayed, call, attempt):
                        yield event
                    return
                async with aclosing(self._sampled(turn, self._drafts(turn, prompt))) as events:
                    async for event in events:
                        yield event

    async def _recorded(self, session: Session, origin: Origin, prompt: Prompt, call: ChatCall) -> dict[int, str]:
        """By choice: the steps of a fork's origin that answer a call; none if the policy is to. A refusal ends it."""
        try:
            steps = origin.answer(prompt.bridged.prompt_ids, call.choices)
        except ForkRefused as refusal:
            session.fresh = False
            await asyncio.wrap_future(self._pool.append([Annotation.end(session.info.id, "failed", str(refusal))]))
            raise
        return {choice: step.id for choice, step in enumerate(steps)}

    def _sampled(self, turn: _Turn, drafts: Sequence[Draft]) -> AsyncGenerator[Event, None]:
        step_ids = tuple(draft.step_id for draft in drafts)
        streams = [self._choice(turn, draft, step_ids) for draft in drafts]
        return streams[0] if len(streams) == 1 else _merged(streams)

    def check_model(self, model: str) -> None:
        """Raise UnknownModel unless calls may name `model`."""
        aliases = self._config.model_aliases
        if model != self._engine.model and model not in aliases and "*" not in aliases:
            raise UnknownModel(f"the model {model!r} is not served here; use {self._engine.model!r}")

    async def count(self, call: ChatCall) -> int:
        """Tokens of the prompt that a call would have, in a trajectory of its own. Raises as `play`."""
        self.check_model(call.model)
        asked = await self._recall.asked(call)
        text = await asyncio.to_thread(self._renderer.text, asked.messages, asked.tools, asked.options)
        return len(await asyncio.to_thread(self._renderer.encode, text))

    def _drafts(self, turn: _Turn, prompt: Prompt) -> list[Draft]:
        generation = self._generation(turn, prompt)
        source = Source(model=self._engine.model, token_source=self._engine.token_source)
        seed = turn.call.seed
        drafts, first = [], new_id("step")
        for choice in range(turn.call.choices):
            # The same seed for each choice would give the same answer that many times.
            shifted = None if seed is None else (seed + choice) % 2**63
            own = replace(generation, sampling=replace(generation.sampling, seed=shifted)) if choice else generation
            step_id = f"{first}{CHOICE_MARK}{choice:03}" if choice else first
            drafts.append(Draft(self._renderer, turn.call, own, prompt, choice, source, step_id))
        return drafts

    async def _prompt(self, turn: _Turn) -> Prompt:
        if turn.call.logprobs and self._engine.token_source == "text":
            raise InvalidRequest("the upstream gives text only, so it has no log-probabilities to tell")
        long = len(turn.call.body) > _LONG_BODY or bool(turn.call.previous_id)
        bridged = await asyncio.to_thread(self._bridged, turn) if long else self._bridged(turn)
        bridged = turn.session.begin(bridged)
        choice = turn.call.tool_choice
        if turn.call.json_schema and turn.call.tools and not choice.forced:
            raise InvalidRequest(
                "a response format and tools that may be called exclude each other here, because an answer that is "
                "kept to a schema cannot be a call; leave the tools out, forbid them, or ask for the format by a tool"
            )
        side = "state" if turn.caller.final_state else side_of(turn.call, turn.session)
        # An engine that is given messages, not ids, forces calls by itself.
        if not choice.forced or self._engine.token_source == "text":
            return Prompt(bridged=bridged, json_schema=turn.call.json_schema, side=side)
        forced = self._renderer.forced(turn.call.tools, choice.name, bridged.text)
        begun = self._renderer.encode(forced.prefix)
        whole = replace(
            bridged, prompt_ids=np.concatenate([bridged.prompt_ids, begun]), text=bridged.text + forced.prefix
        )
        return Prompt(
            bridged=whole, prefill=forced.prefix, prefill_ids=len(begun), json_schema=forced.json_schema, side=side
        )

    def _bridged(self, turn: _Turn) -> Bridged:
        prompt, memory = turn.call.prompt, turn.session.memory
        if prompt is None:
            return bridge(self._renderer, memory, turn.asked)
        if isinstance(prompt, str):
            return bridge_text(self._renderer, memory, prompt)
        return bridge_ids(self._renderer, memory, np.array(prompt, np.int32))

    def _generation(self, turn: _Turn, prompt: Prompt) -> Generation:
        call, ids = turn.call, prompt.bridged.prompt_ids
        room = self._engine.context_length - len(ids)
        if not len(ids):
            raise InvalidRequest("the prompt is empty; the model needs at least one token to go on from")
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(ids)} tokens, but the model's context holds "
                f"{self._engine.context_length}, answer included; shorten it"
            )
        sampling = Sampling(
            temperature=call.temperature,
            top_p=call.top_p,
            top_k=call.top_k,
            seed=call.seed,
            max_tokens=min(room, call.max_tokens or self._config.default_max_tokens),
            constrained=bool(prompt.json_schema),
        )
        return Generation(
            prompt_ids=ids,
            sampling=sampling,
            stop=call.stop,
            top_logprobs=call.top_logprobs,
            json_schema=prompt.json_schema,
            session=turn.session.info.id,
            stream=call.stream,
            conversation=Conversation(
                messages=turn.asked.messages,
                tools=turn.asked.tools,
                forced=call.tool_choice.forced,
                forced_name=call.tool_choice.name,
            ),
        )

    async def _choice(self, turn: _Turn, draft: Draft, step_ids: tuple[str, ...]) -> AsyncGenerator[Event, None]:
        started = False
        try:
            # Closing the stream early cancels the engine's work, by the Engine protocol.
            async with aclosing(self._engine.generate(draft.generation)) as chunks:
                async for chunk in chunks:
                    if not started:
                        started = True
                        yield _started(turn, draft, step_ids, chunk.policy_version)
                    delta = draft.take(chunk)
                    if delta is not None:
                        yield delta
                    if draft.stopped:
                        break
            finish_reason = draft.finish_reason
        except BaseException:  # a closed generator and a cancelled task too: what was sampled is a fact
            if draft.ids:
                draft.finish()
                await self._store(turn, draft, "abort")
            raise
        rest = draft.finish()
        step = await self._store(turn, draft, finish_reason)  # before anything is yielded: the client may leave then
        if rest is not None:
            yield rest
        yield draft.answer(step)

    async def _store(self, turn: _Turn, draft: Draft, finish_reason: FinishReason) -> Step:
        """Store what was sampled. That goes through even if the caller is cancelled meanwhile."""
        session = turn.session
        step = draft.step(session.take_index(), session.info.id, finish_reason, self._redact)
        records: list[Record] = [step] if session.opened else [session.info, step]
        told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        commit = asyncio.wrap_future(self._pool.append(records))
        session.appends += 1
        commit.add_done_callback(partial(self._settle, turn, draft, step, told))
        turn.attempt.commits.append(commit)
        await told  # which is cancelled together with the caller, unlike the commit
        return step

    def _settle(
        self,
        turn: _Turn,
        draft: Draft,
        step: Step,
        told: "asyncio.Future[None]",
        commit: "asyncio.Future[list[Receipt]]",
    ) -> None:
        """The pool has stored a step, or refused it: whoever waits for it is told of that."""
        turn.session.appends -= 1
        try:
            receipt = commit.result()[-1]
            if receipt.error is not None:
                raise receipt.error
        except BaseException as error:
            turn.session.fresh = False
            if isinstance(error, PoolError):
                self._stored_failed()
            if not told.done():
                told.set_exception(error)
            return
        turn.session.opened = True
        if step.finish_reason != "abort":
            turn.attempt.steps[draft.choice] = step.id
        if not told.done():
            told.set_result(None)
        # In the same round of the loop as the answer, and after it: the next call cannot be here before.
        told.get_loop().call_soon(self._remember, turn, draft, step)

    def _remember(self, turn: _Turn, draft: Draft, step: Step) -> None:
        session, prompt = turn.session, draft.prompt
        self._stored(step, prompt.bridged.reused)
        ids, answer = step.response_ids, draft.message
        known = seen(
            self._renderer, step.id, turn.asked, prompt.bridged, ids, answer, prompt.prefill, prompt.prefill_ids
        )
        self._sessions.remember(session, turn.caller.scope, known)

    def _replayed(self, call: ChatCall, attempt: Attempt) -> list[Event]:
        """The answer that is stored already, once more; in the attempt's trajectory, if its steps are an origin's."""
        events: list[Event] = []
        for choice, step_id in enumerate(attempt.step_ids):
            step = self._pool.step(step_id)
            answer = replayed(self._renderer, call, step, choice)
            start = Started(
                choice=choice,
                step_ids=attempt.step_ids,
                trajectory_id=attempt.trajectory_id,
                policy_version=step.policy_version_max,
                prompt_tokens=len(step.prompt_ids),
                cached_tokens=0,
            )
            pieces = tuple(pieces_of(answer.message))
            events += [start, Delta(choice=choice, pieces=pieces, tokens=answer.tokens), answer]
        return events


def _started(turn: _Turn, draft: Draft, step_ids: tuple[str, ...], policy_version: int) -> Started:
    return Started(
        choice=draft.choice,
        step_ids=step_ids,
        trajectory_id=turn.session.info.id,
        policy_version=policy_version,
        prompt_tokens=len(draft.generation.prompt_ids),
        cached_tokens=draft.prompt.bridged.reused,
    )


async def _merged(streams: Sequence[AsyncGenerator[Event, None]]) -> AsyncGenerator[Event, None]:
    """The events of several streams as they come. If one fails, the others are stopped and the failure is raised."""
    queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()
    tasks = [asyncio.ensure_future(_pump(stream, queue)) for stream in streams]
    try:
        running = len(tasks)
        while running:
            event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                running -= 1
            else:
                yield event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[Event, None], queue: asyncio.Queue[Event | BaseException | None]) -> None:
    try:
        async with aclosing(stream):
            async for event in stream:
                queue.put_nowait(event)
        queue.put_nowait(None)
    except Exception as error:
        queue.put_nowait(error)
