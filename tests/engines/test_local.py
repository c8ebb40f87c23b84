"""What the local engine does beyond the laws: it reuses what it computed, serves many event loops, and closes."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from stepwell.algorithms.objective import Objective
from stepwell.engines.base import CacheUse, Generation
from stepwell.engines.local import LocalEngine
from stepwell.errors import EngineError
from stepwell.policy.kv_cache import KVSlots
from stepwell.policy.model import Policy
from stepwell.types import Sample, Sampling
from tests.policy.tiny import one_row, plain_logprobs, random_ids, tiny_policy
from tests.trainer.builders import make_learner


@pytest.fixture
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture
def engine(policy: Policy) -> Iterator[LocalEngine]:
    made = LocalEngine(policy, eos_ids=[], max_batch=4)
    yield made
    made.close()


async def sample(engine: LocalEngine, prompt: np.ndarray, max_tokens: int = 4) -> list[int]:
    request = Generation(prompt_ids=prompt, sampling=Sampling(temperature=0.0, max_tokens=max_tokens))
    return [token async for chunk in engine.generate(request) for token in chunk.token_ids]


async def test_siblings_that_arrive_together_compute_their_prompt_once(engine: LocalEngine) -> None:
    prompt = random_ids(50)
    await asyncio.gather(*(sample(engine, prompt) for _ in range(4)))
    assert engine.cache_use.prompt_tokens == 200
    assert engine.cache_use.reused_tokens == 3 * 49  # all but the last token, whose logits each needs


async def test_the_next_step_computes_only_what_is_new(engine: LocalEngine) -> None:
    prompt = random_ids(30)
    answer = await sample(engine, prompt)
    await sample(engine, np.array([*prompt, *answer, 1, 2], np.int32))
    # the last sampled token never ran: nothing was sampled after it
    assert engine.cache_use.reused_tokens == 30 + len(answer) - 1


async def test_as_many_trajectories_as_slots_keep_their_prefixes(engine: LocalEngine) -> None:
    prompts = [random_ids(30, seed) for seed in range(4)]
    answers = await asyncio.gather(*(sample(engine, prompt) for prompt in prompts))
    before = engine.cache_use.reused_tokens
    for prompt, answer in zip(prompts, answers, strict=True):
        await sample(engine, np.array([*prompt, *answer, 1], np.int32))
    assert engine.cache_use.reused_tokens - before == 4 * (30 + 3)


async def test_after_an_update_nothing_is_reused(engine: LocalEngine, policy: Policy) -> None:
    await sample(engine, random_ids(30))
    with policy.writing():
        policy.version += 1
    await sample(engine, random_ids(30))
    assert engine.cache_use.reused_tokens == 0


async def test_steps_of_two_trajectories_in_turn_each_go_on_from_their_own_last_step(engine: LocalEngine) -> None:
    """Both begin with the same 20 tokens; between two steps of the one the other takes one."""
    system = random_ids(20)
    histories = [np.array([*system, *random_ids(10, seed)], np.int32) for seed in (1, 2)]
    for history in histories:
        await sample(engine, history)
    assert engine.cache_use.reused_tokens == 20
    for _ in range(3):
        for which in (0, 1):
            answer = await sample(engine, histories[which])
            histories[which] = np.array([*histories[which], *answer, 1, 2, 3], np.int32)
    before = engine.cache_use
    for history in histories:
        await sample(engine, history)
    use = engine.cache_use.since(before)
    # four are new to the cache: the last sampled token, after which nothing was sampled, and what was observed
    assert use.reused_tokens == sum(len(history) - 4 for history in histories)
    assert use.hit_rate == pytest.approx(1 - 8 / use.prompt_tokens)


async def test_a_group_asks_for_its_prompt_once_while_another_trajectory_is_sampled(engine: LocalEngine) -> None:
    other, prompt = random_ids(40, 1), random_ids(50)
    await asyncio.gather(sample(engine, other, 12), *(sample(engine, prompt) for _ in range(3)))
    assert engine.cache_use == CacheUse(40 + 150, 2 * 49)


async def test_a_new_policy_version_finds_nothing_in_the_cache_and_then_what_it_computed_itself(
    engine: LocalEngine, policy: Policy
) -> None:
    prompt = random_ids(30)
    await asyncio.gather(*(sample(engine, prompt) for _ in range(2)))
    before = engine.cache_use
    with policy.writing():
        policy.version += 1
    await sample(engine, prompt)
    assert engine.cache_use.since(before) == CacheUse(30, 0)
    await sample(engine, prompt)
    assert engine.cache_use.since(before) == CacheUse(60, 29)


def test_readers_in_many_event_loops_are_served_at_once(engine: LocalEngine, policy: Policy) -> None:
    prompts = [random_ids(6, seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda prompt: asyncio.run(sample(engine, prompt)), prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer == plain_logprobs(policy, [*prompt, *answer]).argmax(-1)[5:-1].tolist()


def test_an_event_loop_that_is_gone_costs_nobody_else_anything(engine: LocalEngine) -> None:
    async def leave_without_a_word() -> None:
        stream = engine.generate(Generation(prompt_ids=random_ids(5), sampling=Sampling(max_tokens=100)))
        await anext(stream)
        abandoned.append(stream)

    abandoned: list = []
    for _ in range(8):
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave_without_a_word())
        loop.close()
    assert len(asyncio.run(sample(engine, random_ids(5)))) == 4


async def test_a_failure_while_requests_are_admitted_is_told_to_all_who_wait_and_costs_no_slot(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: int) -> None:
        raise MemoryError("no memory for a slot")

    with monkeypatch.context() as broken:
        broken.setattr(KVSlots, "copy_prefix", no_memory)
        asked = (sample(engine, random_ids(20, seed)) for seed in range(6))
        failures = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 20)
    assert [str(failure) for failure in failures] == ["sampling failed: no memory for a slot"] * 6
    answers = await asyncio.gather(*(sample(engine, random_ids(20, seed)) for seed in range(4)))
    assert len(answers) == 4
    before = engine.cache_use.reused_tokens
    for seed, answer in enumerate(answers):  # four slots kept their prefixes, so none was lost
        await sample(engine, np.array([*random_ids(20, seed), *answer, 1], np.int32))
    assert engine.cache_use.reused_tokens - before == 4 * (20 + 3)


async def test_closing_tells_every_reader_and_refuses_newcomers(policy: Policy) -> None:
    engine = LocalEngine(policy, eos_ids=[], max_batch=1)
    streams = [engine.generate(Generation(prompt_ids=random_ids(4), sampling=Sampling(max_tokens=120))) for _ in "ab"]
    waiting = asyncio.create_task(anext(streams[1]))
    await anext(streams[0])
    await asyncio.to_thread(engine.close)
    with pytest.raises(EngineError, match="closed"):
        await waiting
    with pytest.raises(EngineError, match="closed"):
        [chunk async for chunk in streams[0]]
    with pytest.raises(EngineError, match="closed"):
        await sample(engine, random_ids(4))
    engine.close()


async def drawn(engine: LocalEngine, prompt: np.ndarray, max_tokens: int = 6) -> tuple[list[int], list[float]]:
    """Tokens at temperature 1 with their log-probabilities."""
    request = Generation(prompt_ids=prompt, sampling=Sampling(max_tokens=max_tokens))
    chunks = [chunk async for chunk in engine.generate(request)]
    return [t for c in chunks for t in c.token_ids], [p for c in chunks for p in c.logprobs]


async def test_an_engine_made_at_a_version_samples_bit_for_bit_what_one_that_lived_on_does(policy: Policy) -> None:
    prompts = [random_ids(8, seed) for seed in range(3)]
    lived = LocalEngine(policy, eos_ids=[], max_batch=1, seed=7)
    first = [await drawn(lived, prompt) for prompt in prompts]
    with policy.writing():
        policy.version = 1
    second = [await drawn(lived, prompt) for prompt in prompts]
    lived.close()
    restarted = LocalEngine(policy, eos_ids=[], max_batch=1, seed=7)
    again = [await drawn(restarted, prompt) for prompt in prompts]
    restarted.close()
    assert again == second
    assert first != second  # the weights are the same, the stream is the version's


@pytest.mark.parametrize("length", [6, 100])
async def test_in_bfloat16_the_trainer_finds_what_the_engine_sampled_as_likely_and_learns(length: int) -> None:
    """On both sides of the length up to which pasts are gathered into one batch."""
    policy = tiny_policy(settings={"precision": "bfloat16"}, max_position_embeddings=256)
    engine = LocalEngine(policy, eos_ids=[], max_batch=4)
    prompts = [random_ids(length, seed) for seed in range(4)]
    answers = await asyncio.gather(*(drawn(engine, prompt, 40) for prompt in prompts))
    engine.close()
    gaps, samples = [], []
    for prompt, (tokens, logprobs) in zip(prompts, answers, strict=True):
        ids = np.array([*prompt, *tokens], np.int32)
        row = torch.from_numpy(ids).long()
        with torch.no_grad():
            logits = policy.logits(policy.hidden(*one_row(row)))
        own = logits.log_softmax(-1)[length - 1 : -1].gather(1, row[length:, None]).squeeze(1)
        gaps.append(np.abs(own.numpy() - np.array(logprobs)))
        samples.append(
            Sample(
                step_id=str(len(samples)),
                trajectory_id="t",
                token_ids=ids,
                prompt_length=length,
                logprobs=np.array(logprobs),
                advantages=np.ones(len(tokens)),
            )
        )
    assert np.mean(gaps) < 0.02
    assert np.max(gaps) < 0.2
    metrics = make_learner(policy).update(samples, Objective())
    assert policy.version == 1
    assert 0 < metrics["grad_norm"] < np.inf
