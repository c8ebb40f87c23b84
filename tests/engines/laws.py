"""The laws of an engine, written against its protocol: every engine that samples from a model has to obey all of them.

A `Bench` is an engine over a small model, with what a test must be able to do to it: look the model's distributions up
by other means, publish other weights, and act between two forward passes. Engines that answer from a server meet
`ServedLaws`, those that are the sampler themselves `EngineLaws`.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pytest
from torch import Tensor

from stepwell.engines.base import Chunk, Engine, Generation
from stepwell.errors import ContextOverflow, EngineError, InvalidRequest
from stepwell.types import FinishReason, Sampling
from tests.policy.tiny import VOCABULARY, random_ids

EOS = 0


class Bench(Protocol):
    """What the laws need. The engine has `SLOTS` slots, a context of `CONTEXT` tokens and `EOS` as end of turn."""

    SLOTS = 3
    CONTEXT = 160

    engine: Engine
    choosy = False
    """Whether it refuses sampling parameters under which its server cannot tell exact log-probabilities."""
    passes: int
    """Forward passes so far."""

    def logprobs(self, ids: Sequence[int], scale: float = 1.0) -> Tensor:
        """By other code, from the weights as they are now: [len(ids), W], of what follows each prefix of `ids`."""
        ...

    def publish(self) -> None:
        """Other weights, one version higher, from the next forward pass on."""
        ...

    def publish_nan(self) -> None:
        """Weights that are not numbers, one version higher."""
        ...

    def before_pass(self, number: int, action: Callable[[], object]) -> None:
        """Run `action` in the engine just before the `number`-th forward pass from now (0: the next one)."""
        ...

    async def notices_a_reader_that_left(self) -> None:
        """Returns when the sampler knows that a stream was closed."""
        ...

    def fail_in_pass(self, number: int) -> None:
        """Let the model raise "out of memory" in the `number`-th forward pass from now."""
        ...


@dataclass(frozen=True)
class Answer:
    """A stream, put together."""

    prompt: list[int]
    ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: FinishReason


def together(prompt: Sequence[int], chunks: Sequence[Chunk]) -> Answer:
    """Also holds every stream to the first law: one finish_reason, on the last chunk."""
    assert [chunk.finish_reason is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert all(len(chunk.token_ids) == len(chunk.logprobs) for chunk in chunks)
    finish = chunks[-1].finish_reason
    assert finish is not None
    return Answer(
        prompt=[int(i) for i in prompt],
        ids=[i for chunk in chunks for i in chunk.token_ids],
        logprobs=[p for chunk in chunks for p in chunk.logprobs],
        versions=[chunk.policy_version for chunk in chunks for _ in chunk.token_ids],
        finish=finish,
    )


async def ask(bench: Bench, prompt: Sequence[int], **sampling) -> Answer:
    wish = Sampling(**{"temperature": 0.0, "max_tokens": 12, **sampling})
    request = Generation(prompt_ids=np.array(prompt, np.int32), sampling=wish)
    return together(prompt, [chunk async for chunk in bench.engine.generate(request)])


async def ask_all(bench: Bench, prompts: Sequence[Sequence[int]], **sampling) -> list[Answer]:
    return list(await asyncio.gather(*(ask(bench, prompt, **sampling) for prompt in prompts)))


def distributions(bench: Bench, answer: Answer, scale: float = 1.0) -> Tensor:
    """[R, W]: what each token of the answer was sampled from."""
    return bench.logprobs([*answer.prompt, *answer.ids], scale)[len(answer.prompt) - 1 : -1]


def check_logprobs(bench: Bench, answer: Answer, scale: float = 1.0) -> None:
    expected = [float(row[token]) for row, token in zip(distributions(bench, answer, scale), answer.ids, strict=True)]
    assert answer.logprobs == pytest.approx(expected, abs=1e-4)


@contextmanager
def exact_or_refused(bench: Bench) -> Iterator[None]:
    """A choosy engine may refuse what is inside, for the reason it names."""
    try:
        yield
    except InvalidRequest as refusal:
        if not (bench.choosy and "log-probabilities" in str(refusal)):
            raise


def check_greedy(bench: Bench, answer: Answer) -> None:
    assert answer.ids == distributions(bench, answer).argmax(-1).tolist()
    check_logprobs(bench, answer)


def meanwhile(bench: Bench, number: int, act: Callable[[], Awaitable[object]]) -> asyncio.Event:
    """Let the engine wait before the `number`-th pass from now until `act` has run here; the event says that it has."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    async def run() -> None:
        await act()
        await asyncio.sleep(0)  # what `act` started has reached the engine
        done.set()

    bench.before_pass(number, lambda: asyncio.run_coroutine_threadsafe(run(), loop).result(timeout=60))
    return done


def prompt(length: int, seed: int = 0) -> list[int]:
    return random_ids(length, seed).tolist()


class StreamLaws:
    async def test_a_response_ends_at_the_end_of_turn_token_or_at_max_tokens_and_says_which(self, bench: Bench) -> None:
        ends = set()
        wishes = [ask(bench, prompt(3, seed), temperature=1.0, max_tokens=30, seed=seed) for seed in range(24)]
        for answer in await asyncio.gather(*wishes):
            ends.add(answer.finish)
            assert EOS not in answer.ids[:-1]
            assert (answer.finish == "stop") == (answer.ids[-1] == EOS)
            assert answer.finish == "stop" or len(answer.ids) == 30
        assert ends == {"stop", "length"}

    @pytest.mark.parametrize("max_tokens", [1, 2, 7])
    async def test_a_response_has_at_most_max_tokens(self, bench: Bench, max_tokens: int) -> None:
        for answer in await ask_all(bench, [prompt(4, seed) for seed in range(8)], max_tokens=max_tokens):
            assert 1 <= len(answer.ids) <= max_tokens

    async def test_a_prompt_of_one_token_is_enough(self, bench: Bench) -> None:
        check_greedy(bench, await ask(bench, [5]))

    async def test_a_response_stops_where_the_context_is_full(self, bench: Bench) -> None:
        for room in (1, 2):
            prompts = [prompt(Bench.CONTEXT - room, seed) for seed in range(6)]
            answers = await ask_all(bench, prompts, max_tokens=50)
            full = [answer for answer in answers if answer.finish == "length"]  # others ended by themselves
            assert full
            for answer in full:
                assert len(answer.ids) == room
                check_greedy(bench, answer)

    @pytest.mark.parametrize("excess", [0, 1, 50])
    async def test_a_prompt_that_leaves_no_room_is_refused_before_the_first_chunk(
        self, bench: Bench, excess: int
    ) -> None:
        with pytest.raises(ContextOverflow, match=str(Bench.CONTEXT)):
            await ask(bench, prompt(Bench.CONTEXT + excess))
        assert bench.passes == 0

    @pytest.mark.parametrize("bad", [[], [3, VOCABULARY], [-1]])
    async def test_a_prompt_that_the_model_cannot_read_is_refused_and_harms_nobody(self, bench: Bench, bad) -> None:
        good, refused = await asyncio.gather(ask(bench, prompt(4)), ask(bench, bad), return_exceptions=True)
        assert isinstance(refused, InvalidRequest)
        check_greedy(bench, good)

    @pytest.mark.parametrize("temperature", [1e-5, 1e-9, 1e-39, 5e-324])
    async def test_next_to_0_a_temperature_samples_the_likeliest_token_or_is_refused_and_harms_nobody(
        self, bench: Bench, temperature: float
    ) -> None:
        wishes = ask(bench, prompt(4)), ask(bench, prompt(4, 1), temperature=temperature)
        good, cold = await asyncio.gather(*wishes, return_exceptions=True)
        check_greedy(bench, good)
        if not isinstance(cold, InvalidRequest):
            assert cold.ids == distributions(bench, cold).argmax(-1).tolist()

    async def test_facts_about_the_engine(self, bench: Bench) -> None:
        assert bench.engine.context_length == Bench.CONTEXT
        assert bench.engine.policy_version == 0
        bench.publish()
        assert bench.engine.policy_version == 1
        assert bench.engine.model


class RequestLaws:
    """What a request may ask for beside how it is sampled, and how it ends early."""

    async def test_it_says_that_ids_are_the_samplers_own_and_that_it_could_serve(self, bench: Bench) -> None:
        assert bench.engine.token_source == "engine"
        assert await bench.engine.healthy()

    async def test_an_answer_that_nobody_watches_is_the_same(self, bench: Bench) -> None:
        for temperature in (0.0, 1.0):
            wish = Sampling(temperature=temperature, max_tokens=12, seed=5)
            ids = np.array(prompt(6), np.int32)
            watched, whole = [
                together(ids, [chunk async for chunk in bench.engine.generate(request)])
                for request in (Generation(prompt_ids=ids, sampling=wish, stream=stream) for stream in (True, False))
            ]
            assert whole.ids == watched.ids
            assert whole.logprobs == pytest.approx(watched.logprobs, abs=1e-5)
            assert whole.finish == watched.finish

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize("count", [1, 3])
    async def test_the_likeliest_tokens_are_told_at_each_position_best_first(
        self, bench: Bench, count: int, stream: bool
    ) -> None:
        wish = Sampling(temperature=1.0, max_tokens=8, seed=3)
        ids = np.array(prompt(6), np.int32)
        request = Generation(prompt_ids=ids, sampling=wish, top_logprobs=count, stream=stream)
        chunks = [chunk async for chunk in bench.engine.generate(request)]
        answer = together(ids, chunks)
        tops = [top for chunk in chunks for top in chunk.top]
        assert len(tops) == len(answer.ids)
        for row, top in zip(distributions(bench, answer), tops, strict=True):
            best = row.topk(count)
            assert [token for token, _ in top] == best.indices.tolist()
            assert [logprob for _, logprob in top] == pytest.approx(best.values.tolist(), abs=1e-4)

    async def test_when_the_reader_leaves_the_sampler_stops(self, bench: Bench) -> None:
        gate = threading.Event()
        before = bench.passes
        bench.before_pass(4, lambda: gate.wait(timeout=60))
        async with aclosing(bench.engine.generate(_long(7))) as stream:
            await anext(stream)
        await bench.notices_a_reader_that_left()
        gate.set()
        check_greedy(bench, await ask(bench, prompt(4), max_tokens=3))
        assert bench.passes - before < 20  # of the 80 that the long one would have taken

    async def test_when_a_reader_that_waits_for_the_whole_leaves_the_sampler_stops_too(self, bench: Bench) -> None:
        gate, reached = threading.Event(), threading.Event()
        before = bench.passes
        bench.before_pass(4, lambda: (reached.set(), gate.wait(timeout=60)))
        reading = asyncio.create_task(anext(bench.engine.generate(replace(_long(7), stream=False))))
        await asyncio.to_thread(reached.wait, 60)
        reading.cancel()
        await asyncio.wait([reading])
        await bench.notices_a_reader_that_left()
        gate.set()
        check_greedy(bench, await ask(bench, prompt(4), max_tokens=3))
        assert bench.passes - before < 20


class SamplingLaws:
    @pytest.mark.parametrize("temperature", [0.3, 0.6, 1.0, 1.7])
    async def test_logprobs_are_the_models_at_the_temperature(self, bench: Bench, temperature: float) -> None:
        with exact_or_refused(bench):
            for seed in range(4):
                answer = await ask(bench, prompt(5, seed), temperature=temperature, seed=seed)
                check_logprobs(bench, answer, temperature)

    async def test_logprobs_hold_over_long_responses(self, bench: Bench) -> None:
        wishes = [ask(bench, prompt(90 + seed, seed), temperature=1.0, max_tokens=60, seed=seed) for seed in range(8)]
        answers = await asyncio.gather(*wishes)
        assert max(len(answer.ids) for answer in answers) > 30
        for answer in answers:
            check_logprobs(bench, answer)

    async def test_greedy_takes_the_likeliest_token_with_its_logprob_at_temperature_1(self, bench: Bench) -> None:
        for seed in range(4):
            check_greedy(bench, await ask(bench, prompt(5, seed)))

    async def test_greedy_is_deterministic(self, bench: Bench) -> None:
        first, second = await ask(bench, prompt(6)), await ask(bench, prompt(6))
        assert first.ids == second.ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)

    async def test_a_seed_makes_a_response_reproducible_whatever_else_is_sampled(self, bench: Bench) -> None:
        alone = await ask(bench, prompt(6), temperature=1.0, seed=11)
        await ask(bench, prompt(6), temperature=1.0)
        others = [ask(bench, prompt(5, seed), temperature=1.0) for seed in (1, 2)]
        again, *_ = await asyncio.gather(ask(bench, prompt(6), temperature=1.0, seed=11), *others)
        assert again.ids == alone.ids
        different = [(await ask(bench, prompt(6), temperature=1.0, seed=seed)).ids for seed in (12, 13, 14)]
        assert any(ids != alone.ids for ids in different)

    async def test_without_a_seed_responses_differ(self, bench: Bench) -> None:
        answers = await ask_all(bench, [prompt(6)] * 6, temperature=1.0)
        assert len({tuple(answer.ids) for answer in answers}) > 1

    @pytest.mark.parametrize("temperature", [0.5, 1.0])
    async def test_top_k_of_1_is_greedy_with_the_logprobs_of_the_whole_distribution(
        self, bench: Bench, temperature: float
    ) -> None:
        with exact_or_refused(bench):
            answer = await ask(bench, prompt(5), temperature=temperature, top_k=1)
            assert answer.ids == distributions(bench, answer).argmax(-1).tolist()
            check_logprobs(bench, answer, temperature)

    @pytest.mark.parametrize(("top_k", "temperature"), [(2, 1.0), (5, 1.5), (VOCABULARY, 1.0), (10**6, 1.0)])
    async def test_top_k_samples_from_the_k_likeliest_and_leaves_logprobs_alone(
        self, bench: Bench, top_k: int, temperature: float
    ) -> None:
        with exact_or_refused(bench):
            ranks = []
            for seed in range(6):
                answer = await ask(bench, prompt(5, seed), temperature=temperature, top_k=top_k, seed=seed)
                check_logprobs(bench, answer, temperature)
                for row, token in zip(distributions(bench, answer), answer.ids, strict=True):
                    ranks.append(int((row > row[token]).sum()))
            assert max(ranks) < top_k
            assert max(ranks) > 0

    @pytest.mark.parametrize(("top_p", "temperature"), [(0.3, 1.0), (0.7, 0.6), (0.9, 1.5), (1e-6, 1.0), (1e-320, 1.0)])
    async def test_top_p_samples_from_the_nucleus_and_leaves_logprobs_alone(
        self, bench: Bench, top_p: float, temperature: float
    ) -> None:
        with exact_or_refused(bench):
            for seed in range(6):
                answer = await ask(bench, prompt(5, seed), temperature=temperature, top_p=top_p, seed=seed)
                check_logprobs(bench, answer, temperature)
                for row, token in zip(distributions(bench, answer, temperature), answer.ids, strict=True):
                    mass_above = float(row.exp()[row > row[token]].sum())
                    assert mass_above < top_p + 1e-5


class SharingLaws:
    """Requests share forward passes and prefixes; none can tell."""

    async def test_together_is_as_alone(self, bench: Bench) -> None:
        prompts = [prompt(length, seed) for seed, length in enumerate((1, 9, 4, 40, 2, 9, 17))]
        crowd = await ask_all(bench, prompts)
        for answer, own in zip(crowd, prompts, strict=True):
            assert answer.ids == (await ask(bench, own)).ids
            check_greedy(bench, answer)

    async def test_more_requests_than_slots_all_finish(self, bench: Bench) -> None:
        prompts = [prompt(3 + seed % 5, seed) for seed in range(6 * Bench.SLOTS)]
        for answer in await ask_all(bench, prompts, max_tokens=5):
            check_greedy(bench, answer)

    async def test_requests_of_different_sampling_share_a_pass(self, bench: Bench) -> None:
        greedy, hot, cold = await asyncio.gather(
            ask(bench, prompt(4, 1)),
            ask(bench, prompt(4, 2), temperature=1.5, top_k=4),
            ask(bench, prompt(4, 3), temperature=0.4, seed=3),
        )
        check_greedy(bench, greedy)
        check_logprobs(bench, hot, 1.5)
        check_logprobs(bench, cold, 0.4)

    @pytest.mark.parametrize("length", [2, 33, 70])
    async def test_a_repeated_prompt_gives_the_same_again(self, bench: Bench, length: int) -> None:
        cold, warm = await ask(bench, prompt(length)), await ask(bench, prompt(length))
        assert warm.ids == cold.ids
        check_greedy(bench, warm)

    @pytest.mark.parametrize("length", [2, 33, 70])
    async def test_siblings_with_one_prompt_sample_from_the_same_distributions(self, bench: Bench, length: int) -> None:
        for answer in await ask_all(bench, [prompt(length)] * 7, temperature=1.0):
            check_logprobs(bench, answer)

    async def test_the_next_steps_of_a_trajectory_continue_it(self, bench: Bench) -> None:
        context = prompt(6)
        for step in range(4):
            answer = await ask(bench, context, temperature=1.0, max_tokens=8, seed=step)
            check_logprobs(bench, answer)
            context = [*context, *answer.ids, *prompt(4, 50 + step)]

    async def test_trajectories_that_take_turns_do_not_mix(self, bench: Bench) -> None:
        contexts = [[*prompt(40), seed + 1] for seed in range(2 * Bench.SLOTS)]
        for step in range(3):
            answers = await ask_all(bench, contexts, max_tokens=4)
            for answer in answers:
                check_greedy(bench, answer)
            contexts = [[*a.prompt, *a.ids, step + 1] for a in answers]

    async def test_a_prompt_that_is_cut_back_or_changed_inside_is_computed_anew_from_there(self, bench: Bench) -> None:
        whole = prompt(50)
        await ask(bench, whole)
        for other in (whole[:20], [*whole[:20], 39, *whole[21:]], whole[1:], [*whole, *whole[:10]]):
            check_greedy(bench, await ask(bench, other))

    async def test_a_prefix_that_another_request_is_still_computing_is_right(self, bench: Bench) -> None:
        long = prompt(60)
        answers = await ask_all(bench, [[*long, 1], [*long, 2], [*long[:59], 3], long[:35], [*long, 1]], max_tokens=6)
        for answer in answers:
            check_greedy(bench, answer)


class FrequencyLaws:
    async def test_samples_have_the_frequencies_of_the_distribution(self, bench: Bench) -> None:
        """The mean log-probability of a sample is minus the entropy; 600 draws stay within 5 standard errors of it."""
        row = bench.logprobs(prompt(5))[-1].double()
        answers = await ask_all(bench, [prompt(5)] * 600, temperature=1.0, max_tokens=1)
        surprises = np.array([answer.logprobs[0] for answer in answers])
        entropy = float(-(row.exp() * row).sum())
        deviation = float((row.exp() * (row + entropy) ** 2).sum()) ** 0.5
        assert abs(surprises.mean() + entropy) < 5 * deviation / len(surprises) ** 0.5


class VersionLaws:
    async def test_after_an_update_nothing_of_the_old_weights_is_reused(self, bench: Bench) -> None:
        old = await ask_all(bench, [prompt(40), prompt(12, 1)])
        for answer in old:
            check_greedy(bench, answer)
        bench.publish()
        for answer in old:
            new = await ask(bench, answer.prompt)
            assert set(new.versions) == {1}
            check_greedy(bench, new)
            continued = await ask(bench, [*answer.prompt, *answer.ids, 3])
            check_greedy(bench, continued)

    async def test_each_token_carries_the_version_that_sampled_it(self, bench: Bench) -> None:
        assert set((await ask(bench, prompt(4))).versions) == {0}
        bench.before_pass(5, bench.publish)
        answer = await ask(bench, prompt(4), temperature=1.0, seed=LASTING)
        assert answer.versions == [0] * 5 + [1] * (len(answer.ids) - 5)
        assert len(answer.ids) > 5

    async def test_what_an_update_caught_in_the_middle_is_not_shared_with_anybody_later(self, bench: Bench) -> None:
        """Its keys and values are partly of the old weights: neither a sibling nor its own next step may see them."""
        siblings: list[asyncio.Task[Answer]] = []

        async def arrive() -> None:
            siblings.append(asyncio.create_task(ask(bench, prompt(40))))

        bench.before_pass(3, bench.publish)
        meanwhile(bench, 5, arrive)
        caught = await ask(bench, prompt(40), temperature=1.0, seed=LASTING)
        sibling = await siblings[0]
        assert caught.versions == [0] * 3 + [1] * (len(caught.ids) - 3)
        assert len(caught.ids) > 5
        assert set(sibling.versions) == {1}
        check_greedy(bench, sibling)
        check_greedy(bench, await ask(bench, [*caught.prompt, *caught.ids, 3]))

    async def test_up_to_an_update_in_the_middle_logprobs_are_those_of_the_old_weights(self, bench: Bench) -> None:
        alone = await ask(bench, prompt(10), temperature=1.0, seed=LASTING)
        check_logprobs(bench, alone)
        bench.before_pass(4, bench.publish)
        caught = await ask(bench, prompt(10), temperature=1.0, seed=LASTING)
        assert caught.ids[:4] == alone.ids[:4]
        assert caught.logprobs[:4] == pytest.approx(alone.logprobs[:4], abs=1e-5)


LASTING = 4
"""A seed with which the responses of the tests above are long enough for something to happen in their middle."""


class TroubleLaws:
    async def test_a_stream_that_is_closed_early_makes_room_at_once(self, bench: Bench) -> None:
        """All slots are taken by long responses, their readers go away, and the newcomer has every pass to itself."""
        streams = [bench.engine.generate(_long(seed)) for seed in range(Bench.SLOTS)]
        first_chunks: list[asyncio.Task[Chunk]] = []
        newcomers: list[asyncio.Task[Answer]] = []

        async def join() -> None:
            first_chunks.extend(asyncio.create_task(anext(stream)) for stream in streams[1:])

        async def leave() -> None:
            for chunk in await asyncio.gather(*first_chunks):
                assert chunk.finish_reason is None
            for stream in streams:
                await stream.aclose()
            newcomers.append(asyncio.create_task(ask(bench, prompt(4), max_tokens=5)))

        meanwhile(bench, 1, join)
        left = meanwhile(bench, 3, leave)
        await anext(streams[0])
        await left.wait()
        answer = await newcomers[0]
        check_greedy(bench, answer)
        assert bench.passes == 3 + len(answer.ids)

    async def test_a_reader_that_is_cancelled_leaves_the_others_alone(self, bench: Bench) -> None:
        tasks = [asyncio.create_task(ask(bench, prompt(5, seed), max_tokens=20)) for seed in range(4)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        tasks[2].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        for answer in (results[1], results[3]):
            check_greedy(bench, answer)

    async def test_what_a_cancelled_request_left_behind_can_be_continued(self, bench: Bench) -> None:
        async with aclosing(bench.engine.generate(_long(7))) as stream:
            sampled = [(await anext(stream)).token_ids[0] for _ in range(3)]
        check_greedy(bench, await ask(bench, [*prompt(4, 7), *sampled, 3]))

    async def test_a_failure_of_the_model_is_told_to_every_reader_and_the_engine_lives_on(self, bench: Bench) -> None:
        bench.fail_in_pass(3)
        prompts = [prompt(5, seed) for seed in range(2 * Bench.SLOTS)]
        results = await asyncio.gather(*(ask(bench, own, max_tokens=20) for own in prompts), return_exceptions=True)
        failed = [result for result in results if isinstance(result, BaseException)]
        assert failed
        assert all(isinstance(error, EngineError) and "out of memory" in str(error) for error in failed)
        for answer in await ask_all(bench, prompts):
            check_greedy(bench, answer)

    async def test_weights_that_are_not_numbers_are_a_failure_too(self, bench: Bench) -> None:
        bench.publish_nan()
        with pytest.raises(EngineError):
            await ask(bench, prompt(5), temperature=1.0)

    async def test_failures_use_up_no_slots_and_leave_nothing_behind(self, bench: Bench) -> None:
        prompts = [prompt(40, seed) for seed in range(Bench.SLOTS)]
        for number in (0, 0, 1, 2):
            bench.fail_in_pass(number)
            for result in await asyncio.gather(*(ask(bench, own) for own in prompts[:2]), return_exceptions=True):
                assert isinstance(result, EngineError | Answer)
        before = bench.passes
        answers = await ask_all(bench, prompts)
        for answer in answers:
            check_greedy(bench, answer)
        # all at once, but for a pass or two between the first arrival and the last
        assert bench.passes - before <= max(len(answer.ids) for answer in answers) + Bench.SLOTS


def _long(seed: int) -> Generation:
    sampling = Sampling(temperature=1.0, top_k=0, max_tokens=80, seed=LASTING)
    return Generation(prompt_ids=np.array(prompt(4, seed), np.int32), sampling=sampling)


class ServedLaws(StreamLaws, RequestLaws, SamplingLaws):
    """Of every engine with ids and log-probabilities."""


class EngineLaws(ServedLaws, FrequencyLaws, SharingLaws, VersionLaws, TroubleLaws):
    """Of an engine that samples in this process."""
