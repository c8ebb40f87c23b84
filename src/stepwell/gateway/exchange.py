"""One call: messages become a prompt, the engine samples, the step is stored, and only then is the answer complete."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from stepwell.engines.base import Engine, Generation
from stepwell.errors import ContextOverflow
from stepwell.gateway.config import GatewayConfig
from stepwell.gateway.dialects.base import ChatCall, Event
from stepwell.gateway.problems import UnknownModel
from stepwell.gateway.reply import Draft
from stepwell.gateway.sessions import Caller, Session, Sessions
from stepwell.pool.base import Pool
from stepwell.rendering.renderer import Renderer
from stepwell.types import FinishReason, Record, Sampling, Step

_log: Final = logging.getLogger(__name__)


class Exchange:
    """Plays calls against one engine and records them in one pool."""

    def __init__(
        self, engine: Engine, renderer: Renderer, pool: Pool, sessions: Sessions, config: GatewayConfig
    ) -> None:
        """Join the parts; nothing starts until `play`."""
        self._engine = engine
        self._renderer = renderer
        self._pool = pool
        self._sessions = sessions
        self._config = config

    async def play(self, call: ChatCall, caller: Caller) -> AsyncGenerator[Event, None]:
        """Yield one Started, any number of Delta, and one Answer, whose step is durable by then.

        Closing the generator or cancelling its task stops the engine. Tokens sampled up to there, or up to an engine's
        failure, are stored as a step with finish_reason `abort`.

        Raises:
            UnknownModel: the call names another model than the engine's.
            ContextOverflow: the prompt leaves no room for an answer.
            Conflict: the trajectory has ended.
            EngineError: sampling failed.
            PoolError: the step could not be stored.
        """
        if call.model != self._engine.model:
            raise UnknownModel(f"the model {call.model!r} is not served here; use {self._engine.model!r}")
        async with self._sessions.use(caller) as session:
            draft = self._draft(call, session)
            try:
                async with aclosing(self._sample(draft)) as events:
                    async for event in events:
                        yield event
                finish_reason = draft.finish_reason
            except BaseException:  # a closed generator and a cancelled task too: what was sampled is a fact
                if draft.ids:
                    await self._store(session, draft, "abort")
                raise
            yield draft.answer(await self._store(session, draft, finish_reason))

    def _draft(self, call: ChatCall, session: Session) -> Draft:
        bridged = session.prompt(self._renderer, call)
        _log.debug("%s: %d of %d ids reused %s", session.info.id, bridged.reused, len(bridged.prompt_ids), bridged.fork)
        room = self._engine.context_length - len(bridged.prompt_ids)
        if room < 1:
            raise ContextOverflow(
                f"the conversation has {len(bridged.prompt_ids)} tokens, but the model's context holds "
                f"{self._engine.context_length}, answer included; shorten it"
            )
        sampling = Sampling(
            temperature=call.temperature,
            top_p=call.top_p,
            seed=call.seed,
            max_tokens=min(room, call.max_tokens or self._config.default_max_tokens),
        )
        generation = Generation(prompt_ids=bridged.prompt_ids, sampling=sampling)
        return Draft(self._renderer, call, generation, trajectory_id=session.info.id, model=self._engine.model)

    async def _sample(self, draft: Draft) -> AsyncGenerator[Event, None]:
        # Closing the stream early cancels the engine's work, by the Engine protocol; so what it returns can be closed.
        stream = self._engine.generate(draft.generation)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                for event in draft.take(chunk):
                    yield event
                if draft.stopped:
                    return

    async def _store(self, session: Session, draft: Draft, finish_reason: FinishReason) -> Step:
        step = draft.step(session.take_index(), finish_reason)
        records: list[Record] = [step] if session.opened else [session.info, step]
        session.appends += 1
        try:
            # The pool has the step from here on, even if this task is cancelled: shield, lest its future be cancelled.
            receipts = await asyncio.shield(asyncio.wrap_future(self._pool.append(records)))
            if receipts[-1].error is not None:
                raise receipts[-1].error
        except BaseException:
            session.fresh = False
            raise
        finally:
            session.appends -= 1
        session.opened = True
        session.remember(self._renderer, step, draft.message)
        return step
