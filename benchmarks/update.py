"""What one GRPO update takes, sampling included, beside TRL's trainer on the same model and token counts.

A Qwen2 of 0.8 million parameters samples 16 completions of 32 tokens for two prompts of 64, and makes one optimiser
step on them. The two trainers take turns in one process, so that whatever else the machine does slows both down; each
also starts in a process of its own, where the time to its first update is taken.
"""

import asyncio
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

sys.path.insert(0, str(Path(__file__).parent))  # so that it also runs when it is imported as benchmarks.update
from report import Row, main
from tokenizers import Tokenizer, models, pre_tokenizers

from stepwell.algorithms.base import Inputs
from stepwell.algorithms.grpo import GRPO
from stepwell.engines.base import Generation
from stepwell.engines.local import LocalEngine
from stepwell.policy.attention import ATTENTION
from stepwell.policy.model import Policy, PolicyConfig
from stepwell.trainer.collate import make_samples
from stepwell.trainer.update import Learner, LearnerConfig
from stepwell.types import Group, GroupInfo, Sampling, Step, Trajectory, TrajectoryInfo

VOCABULARY, PROMPT, RESPONSE, PROMPTS, GROUP = 128, 64, 32, 2, 8
LR = 1e-4

Update = Callable[[], None]


def measure(quick: bool) -> Sequence[Row]:
    count = 9 if quick else 60
    with _ours() as update:
        if importlib.util.find_spec("trl") is None:
            print("trl is not installed, so its rows are left out: pip install trl")
            return [_seconds("Stepwell, one update", [_timed(update) for _ in range(count)]), _first_row("Stepwell")]
        ours, theirs = _alternating(update, count)
    ratio = statistics.median(ours) / statistics.median(theirs)
    return [
        _seconds("Stepwell, one update", ours),
        _seconds("TRL, one update", theirs),
        Row(name="Stepwell / TRL, one update", value=ratio, unit="x", goal=0.5),
        _first_row("Stepwell"),
        _first_row("TRL"),
    ]


def _seconds(name: str, values: Sequence[float]) -> Row:
    return Row(name=f"{name}, median", value=statistics.median(values) * 1e3, unit="ms")


def _timed(work: Update) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _alternating(ours: Update, count: int) -> tuple[list[float], list[float]]:
    """Seconds of each of `count` updates of ours and of TRL's, taking turns, after two of each to warm up."""
    marks: list[tuple[float, float]] = []  # when TRL finished an update, and when we did

    def after_theirs() -> None:
        theirs = time.perf_counter()
        ours()
        marks.append((theirs, time.perf_counter()))

    _train_with_trl(count + 3, after_theirs)
    pairs = list(pairwise(marks))[2:]
    return [end - start for _, (start, end) in pairs], [start - before for (_, before), (start, _) in pairs]


@contextmanager
def _ours() -> Iterator[Update]:
    """As `stepwell train` does it, without environment and pool: engine, credit, learner."""
    policy = Policy(_model(attn_implementation=ATTENTION), PolicyConfig(value_head_size=8), name="tiny")
    learner = Learner(policy, LearnerConfig(lr=LR))
    algorithm = GRPO().build()
    with closing(LocalEngine(policy, eos_ids=(), max_batch=PROMPTS * GROUP)) as engine:
        numbers = iter(range(10**9))

        def update() -> None:
            groups = asyncio.run(_sampled(engine, next(numbers)))
            credits = {credit.step_id: credit for group in groups for credit in algorithm.assign(group, Inputs())}
            learner.update(make_samples(groups, credits, {}), algorithm.objective)

        yield update


async def _sampled(engine: LocalEngine, number: int) -> list[Group]:
    prompts = _prompts()[number * PROMPTS % 64 :][:PROMPTS]
    sampled = await asyncio.gather(*(_trajectory(engine, prompt) for prompt in prompts for _ in range(GROUP)))
    info = GroupInfo(task_id="task", size=GROUP)
    return [Group(info=info, trajectories=tuple(sampled[i * GROUP :][:GROUP])) for i in range(PROMPTS)]


async def _trajectory(engine: LocalEngine, prompt: Sequence[int]) -> Trajectory:
    info = TrajectoryInfo(task_id="task")
    request = Generation(
        prompt_ids=torch.tensor(prompt, dtype=torch.int32).numpy(), sampling=Sampling(max_tokens=RESPONSE)
    )
    chunks = [chunk async for chunk in engine.generate(request)]
    response = [token for chunk in chunks for token in chunk.token_ids]
    logprobs = [logprob for chunk in chunks for logprob in chunk.logprobs]
    step = Step(
        trajectory_id=info.id,
        index=0,
        prompt_ids=request.prompt_ids,
        response_ids=np.array(response, np.int32),
        logprobs=np.array(logprobs, np.float32),
    )
    reward = _reward(response)
    return Trajectory(info=info, steps=(step,), step_rewards=(reward,), reward=reward, status="terminated")


def _train_with_trl(updates: int, after_each: Update) -> None:
    """TRL's trainer on the same work, with its fastest settings for it: no checkpointing of activations, no KL."""
    warnings.simplefilter("ignore")  # about deprecated settings, of which we make none
    transformers.utils.logging.set_verbosity_error()
    from datasets import Dataset  # noqa: PLC0415  # comes with trl
    from trl import GRPOConfig, GRPOTrainer  # noqa: PLC0415  # optional: the peer that is measured

    class Clock(transformers.TrainerCallback):  # type: ignore[misc]  # of a class that is not typed
        def on_step_end(self, *_: Any, **__: Any) -> None:
            after_each()

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=updates,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=RESPONSE,
            generation_kwargs={"min_new_tokens": RESPONSE},
            learning_rate=LR,
            lr_scheduler_type="constant",
            beta=0.0,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=_model(),
            reward_funcs=lambda completion_ids, **_: [_reward(ids) for ids in completion_ids],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": " ".join(f"w{i}" for i in prompt)} for prompt in _prompts()]),
            processing_class=_tokenizer(),
            callbacks=[Clock()],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()


def _model(**how: Any) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        **how,
    )
    return Qwen2ForCausalLM(config)


def _prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(2, VOCABULARY, (64, PROMPT), generator=generator).tolist()


def _reward(response: Sequence[int]) -> float:
    return sum(token % 2 for token in response) / len(response)


def _tokenizer() -> PreTrainedTokenizerFast:
    """Token i is written `wi`; 0 pads and 1 would end a text."""
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="w0", eos_token="w1")


def _first_row(who: str) -> Row:
    """Seconds from the start of a fresh interpreter to the end of its first update."""
    context = multiprocessing.get_context("spawn")
    done, tell = context.Pipe(duplex=False)
    start = time.perf_counter()
    process = context.Process(target=_FIRST[who], args=(tell,))
    process.start()
    done.recv()
    seconds = time.perf_counter() - start
    process.join()
    return Row(name=f"{who}, from start to first update", value=seconds, unit="s")


def _first_of_ours(tell: Connection) -> None:
    torch.set_num_threads(1)
    with _ours() as update:
        update()
        tell.send(None)


def _first_of_trl(tell: Connection) -> None:
    torch.set_num_threads(1)
    _train_with_trl(1, lambda: tell.send(None))


_FIRST = {"Stepwell": _first_of_ours, "TRL": _first_of_trl}


if __name__ == "__main__":
    torch.set_num_threads(1)
    main("One GRPO update", measure)
