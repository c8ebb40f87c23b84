"""The in-process engine: samples from the policy's own weights, so a new policy version serves at once.

All running requests advance together, one packed forward pass (a *tick*) at a time: a request that just arrived
contributes what is left of its prompt, one that is decoding contributes its newest token. Keys and values live in
slots. A slot that has finished keeps its content, so the next step of a trajectory, or a sibling with the same prompt,
starts from the longest prefix that some slot already holds.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor

from stepwell.engines.base import CacheUse, Chunk, Generation, Weights, WrongWeights
from stepwell.engines.constraint import Constraint, ConstraintCompiler
from stepwell.engines.sampling import Pick, Wish, sample
from stepwell.engines.weights import verified
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest, StepwellError
from stepwell.policy.kv_cache import CachedSegments, KVSlots, Segment
from stepwell.policy.model import Policy
from stepwell.policy.shards import SHARDS
from stepwell.policy.weights import load_weights
from stepwell.prefix_tree.tree import common_prefix
from stepwell.types import FinishReason, Ids, TokenSource

_log = logging.getLogger(__name__)

_COLDEST: Final = 1e-5
"""Logits divided by less than this could overflow."""
_WORTH_WAITING: Final = 32
"""A request waits one tick for a prompt that is being computed if that saves it at least so many tokens."""


@dataclass(slots=True, eq=False)
class _Request:
    """One completion under way. Touched by the engine's thread only, except for `cancelled`."""

    prompt: Ids
    wish: Wish
    room: int
    """Tokens it may sample before its context or `max_tokens` is full."""
    loop: asyncio.AbstractEventLoop
    queue: "asyncio.Queue[Chunk | StepwellError]"
    constraint: Constraint | None
    sampled: list[int] = field(default_factory=list)
    slot: int = -1
    cancelled: bool = False


class LocalEngine:
    """Samples from a `Policy` in a thread of its own; meets `stepwell.engines.base.Engine`."""

    def __init__(
        self,
        policy: Policy,
        *,
        eos_ids: Sequence[int],
        max_batch: int = 64,
        seed: int = 0,
        constraints: ConstraintCompiler | None = None,
    ) -> None:
        """Start sampling from `policy`.

        Args:
            policy: The model; may be updated while the engine runs.
            eos_ids: Tokens that end a response.
            max_batch: How many requests run at once; the others wait their turn.
            seed: Of the random stream of all requests that bring no seed. It begins anew with each policy version, so
                an engine that is made at a version, as after a restart, samples what one that lived on would. Requests
                that run at once share it in the order of their arrival.
            constraints: Made for this model's tokenizer; without it, requests with a JSON schema are refused.
        """
        self._policy = policy
        self._constraints = constraints
        self._eos = frozenset(eos_ids)
        self._slots = KVSlots(max_batch)
        self._slots_version = policy.version
        self._seed = seed
        self._generator = _stream(seed, policy.version)
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []
        self._free = deque(range(max_batch))
        self._wake = threading.Condition()
        self._closed = False
        self._cache_use = CacheUse()
        self._thread = threading.Thread(target=self._work, name="stepwell-engine", daemon=True)
        self._thread.start()

    @property
    def model(self) -> str:
        """Name under which the model is served."""
        return self._policy.name

    @property
    def context_length(self) -> int:
        """Largest P + R, in tokens."""
        return self._policy.context_length

    @property
    def policy_version(self) -> int:
        """Version of the weights that would sample the next token."""
        return self._policy.version

    @property
    def cache_use(self) -> CacheUse:
        """Prompt tokens of all requests so far, and those of them whose keys and values were already in a slot."""
        return self._cache_use

    @property
    def token_source(self) -> TokenSource:
        """Ids and log-probabilities are the sampler's own."""
        return "engine"

    async def healthy(self) -> bool:
        """Whether its thread samples."""
        return not self._closed and self._thread.is_alive()

    async def generate(self, request: Generation) -> AsyncGenerator[Chunk, None]:
        """Stream one completion, a chunk per token (see the protocol)."""
        self._refuse_impossible(request)
        room = min(request.sampling.max_tokens, self.context_length - len(request.prompt_ids))
        if room < 1:
            raise ContextOverflow(
                f"the prompt has {len(request.prompt_ids)} tokens; this model's context holds {self.context_length}"
            )
        work = _Request(
            prompt=request.prompt_ids,
            wish=_wish(request, self._policy.vocabulary_size),
            room=room,
            loop=asyncio.get_running_loop(),
            queue=asyncio.Queue(),
            constraint=await self._constraint(request.json_schema),
        )
        self._submit(work)
        try:
            while True:
                chunk = await work.queue.get()
                if isinstance(chunk, StepwellError):
                    raise chunk
                yield chunk
                if chunk.finish_reason is not None:
                    return
        finally:
            work.cancelled = True

    def _refuse_impossible(self, request: Generation) -> None:
        """One request that the model cannot compute must not fail the tick of all the others."""
        prompt, words = request.prompt_ids, self._policy.vocabulary_size
        if not len(prompt) or prompt.min() < 0 or prompt.max() >= words:
            raise InvalidRequest(f"a prompt needs at least one token, all of them in 0..{words - 1}")
        if 0 < request.sampling.temperature < _COLDEST:
            raise InvalidRequest(f"temperature must be 0, which is greedy, or at least {_COLDEST}")

    async def _constraint(self, json_schema: str) -> Constraint | None:
        if not json_schema:
            return None
        if self._constraints is None:
            raise InvalidRequest("this engine was made without a tokenizer, so it cannot hold a response to a schema")
        return await asyncio.to_thread(self._constraints.compile, json_schema)

    async def load(self, weights: Weights) -> float:
        """Put what `stepwell.policy.weights.save_weights` wrote into the policy (see `TakesWeights`)."""
        try:
            await asyncio.to_thread(load_weights, weights.folder, self._policy, weights.version)
        except (OSError, SafetensorError) as error:
            # a single file is read as a whole before anything changes, shards are read into their places
            kind = WrongWeights if (weights.folder / SHARDS).is_dir() else EngineError
            raise kind(f"the weights in {weights.folder} cannot be read: {error}") from error
        return await verified(self, weights)

    def close(self) -> None:
        """Stop sampling; requests under way end with an EngineError."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _submit(self, work: _Request) -> None:
        with self._wake:
            if self._closed:
                raise EngineError("the engine is closed")
            self._waiting.append(work)
            self._wake.notify()

    def _work(self) -> None:
        """The thread: tick while there is work, sleep while there is none."""
        while self._wait_for_work():
            try:
                with self._policy.reading() as version, torch.inference_mode():
                    self._tick(version)
            except Exception as error:  # the thread must outlive any failure; every waiting client is told
                _log.exception("the engine failed while sampling")
                self._fail(EngineError(f"sampling failed: {error}"))
        self._fail(EngineError("the engine was closed"))

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._waiting or self._running)
            return not self._closed

    def _fail(self, error: EngineError) -> None:
        with self._wake:
            failed = [*self._running, *self._waiting]
            self._waiting.clear()
        for work in self._running:
            self._free.append(work.slot)
        self._running.clear()
        self._slots.forget()
        _deliver([(work, error) for work in failed])

    def _tick(self, version: int) -> None:
        """Admit who waits, run one forward pass, sample one token for each request, and hand the tokens out."""
        self._drop_cancelled()
        if version != self._slots_version:
            self._slots.forget(busy=[work.slot for work in self._running])
            self._slots_version = version
            self._generator = _stream(self._seed, version)
        self._admit()
        self._constrain()
        if not self._running:
            return
        segments = [self._segment(work) for work in self._running]
        picks = sample(self._forward(segments), [work.wish for work in self._running], self._generator)
        chunks = [(work, self._chunk(work, pick, version)) for work, pick in zip(self._running, picks, strict=True)]
        self._retire([work for work, chunk in chunks if chunk.finish_reason])
        _deliver(chunks)

    def _chunk(self, work: _Request, pick: Pick, version: int) -> Chunk:
        return Chunk(
            token_ids=(pick.token,),
            logprobs=(pick.logprob,),
            policy_version=version,
            finish_reason=self._take(work, pick.token),
            top=(pick.top,) if work.wish.top else (),
        )

    def _drop_cancelled(self) -> None:
        self._retire([work for work in self._running if work.cancelled])

    def _constrain(self) -> None:
        """Work out the candidates of the constrained requests; one that has none fails alone."""
        failed: list[tuple[_Request, InvalidRequest]] = []
        for work in self._running:
            if work.constraint is not None:
                try:
                    work.wish.allowed = torch.from_numpy(work.constraint.allowed())
                except InvalidRequest as error:
                    failed.append((work, error))
        self._retire([work for work, _ in failed])
        _deliver(failed)

    def _retire(self, done: Sequence[_Request]) -> None:
        for work in done:
            self._running.remove(work)
            self._free.append(work.slot)  # reused last: its content stays as long as possible

    def _admit(self) -> None:
        """Give slots to waiting requests, except to those that do better to wait for a prompt under computation."""
        with self._wake:
            waiting = [work for work in self._waiting if not work.cancelled]
            self._waiting = deque(waiting)
        starting: list[_Request] = []
        for work in waiting:
            source, length = self._slots.longest_prefix(work.prompt[:-1])  # the last token must run: it has the logits
            if self._free and not _waits(work, length, starting):
                self._start(work, source, length)
                starting.append(work)

    def _start(self, work: _Request, source: int, length: int) -> None:
        # Waiting or running at every moment, so that `_fail` finds it and its slot whatever goes wrong here.
        work.slot = self._take_slot(source, length)
        self._running.append(work)
        with self._wake:
            self._waiting.remove(work)
        self._slots.copy_prefix(source, work.slot, length)
        use = self._cache_use  # replaced as a whole, so that who reads it meanwhile sees both counts of one moment
        self._cache_use = CacheUse(use.prompt_tokens + len(work.prompt), use.reused_tokens + length)

    def _take_slot(self, source: int, length: int) -> int:
        """The source itself when it is free and would be continued, else the slot that was free for the longest."""
        if source in self._free and length == self._slots.lengths[source]:
            self._free.remove(source)
            return source
        return self._free.popleft()

    def _segment(self, work: _Request) -> Segment:
        """What `work` contributes to this tick: the rest of its prompt, or the token that was sampled last."""
        if work.sampled:
            return self._slots.extend(work.slot, np.array(work.sampled[-1:], np.int32))
        return self._slots.extend(work.slot, work.prompt[self._slots.lengths[work.slot] :])

    def _forward(self, segments: Sequence[Segment]) -> Tensor:
        """Logits [len(segments), W] after the last token of each segment."""
        ids = torch.from_numpy(np.concatenate([s.ids for s in segments]).astype(np.int64))
        positions = torch.from_numpy(np.concatenate([np.arange(s.start, s.start + len(s.ids)) for s in segments]))
        hidden = self._policy.hidden(ids, positions, CachedSegments(self._slots, segments))
        last = torch.from_numpy(np.cumsum([len(s.ids) for s in segments]) - 1)
        return self._policy.logits(hidden[last])

    def _take(self, work: _Request, token: int) -> FinishReason | None:
        work.sampled.append(token)
        if work.constraint is not None:
            work.constraint.advance(token)
        if token in self._eos:
            return "stop"
        return "length" if len(work.sampled) >= work.room else None


def _stream(seed: int, version: int) -> torch.Generator:
    """The random stream that a policy version is sampled with."""
    (mixed,) = np.random.SeedSequence([seed, version]).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(mixed))


def _wish(request: Generation, vocabulary_size: int) -> Wish:
    seed = request.sampling.seed
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return Wish(request.sampling, generator, top=min(request.top_logprobs, vocabulary_size))


def _waits(work: _Request, held: int, starting: Sequence[_Request]) -> bool:
    """Whether a prompt that starts in this tick will soon offer a much longer prefix than the one that is held now."""
    worth = held + _WORTH_WAITING
    if len(work.prompt) <= worth:
        return False
    return any(common_prefix(work.prompt[:-1], other.prompt) >= worth for other in starting)


def _deliver(chunks: Sequence[tuple[_Request, "Chunk | StepwellError"]]) -> None:
    """Hand chunks to their event loops, waking each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Request, Chunk | StepwellError]]] = {}
    for work, chunk in chunks:
        by_loop.setdefault(work.loop, []).append((work, chunk))
    for loop, mine in by_loop.items():
        try:
            loop.call_soon_threadsafe(_enqueue, mine)
        except RuntimeError:  # that loop is closed: its requests have no reader any more
            for work, _ in mine:
                work.cancelled = True


def _enqueue(chunks: Sequence[tuple[_Request, "Chunk | StepwellError"]]) -> None:
    for work, chunk in chunks:
        work.queue.put_nowait(chunk)
