"""Episodes, and their copies: a fork is in the state that it was forked from, or it is refused."""

import asyncio
import threading
from dataclasses import dataclass, field, replace

import pytest

from stepwell.errors import EnvironmentFailed, ForkRefused
from stepwell.rendering.messages import Message
from stepwell.rollout.env import Outcome
from stepwell.rollout.episode import Episode

ACTIONS = [Message(role="assistant", content=text) for text in "abc"]


@dataclass
class Counting:
    """Says what it was told so far; `drift` is added to what it says, from one instance to the next."""

    drift: str = ""
    told: list[str] = field(default_factory=list)
    closed: bool = False
    tools = ()

    def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        self.told = [f"{task_id}/{seed}"]
        return (Message(role="user", content=self.told[0]),)

    def step(self, action: Message) -> Outcome:
        self.told.append(action.content)
        return Outcome(messages=(Message(role="user", content="".join(self.told) + self.drift),))

    def close(self) -> None:
        self.closed = True


class Copied(Counting):
    """Has a state that can be taken."""

    def snapshot(self) -> object:
        return tuple(self.told)

    def restore(self, snapshot) -> None:
        self.told = list(snapshot)


class Awaited(Copied):
    """The same with `async` methods."""

    async def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
        return super().reset(task_id, seed=seed)

    async def step(self, action: Message) -> Outcome:
        return super().step(action)

    async def snapshot(self) -> object:
        return super().snapshot()

    async def restore(self, snapshot) -> None:
        super().restore(snapshot)


class Secretive(Counting):
    """Says the same whatever happened, but has a state."""

    def step(self, action: Message) -> Outcome:
        self.told.append(action.content)
        return Outcome(messages=(Message(role="user", content="?"),))

    def state_hash(self) -> bytes:
        return ("".join(self.told) + self.drift).encode()


class Lasting(Counting):
    """What it does cannot be undone."""

    no_fork = "it sends letters"


@dataclass
class Made:
    """A task set whose instances are kept; the second and later ones are `later`."""

    kind: type[Counting]
    later: str = ""
    instances: list[Counting] = field(default_factory=list)
    name: str = "made"

    def tasks(self, split: str):
        return ["t"]

    def make(self) -> Counting:
        self.instances.append(self.kind(drift=self.later if self.instances else ""))
        return self.instances[-1]


@pytest.mark.parametrize("kind", [Counting, Copied, Awaited])
async def test_a_fork_is_where_the_original_was_and_what_it_does_stays_its_own(kind) -> None:
    tasks = Made(kind)
    original = await Episode.begin(tasks, "t", seed=3)
    await original.step(ACTIONS[0])
    state = await original.boundary()
    await original.step(ACTIONS[1])
    for _ in range(2):
        fork = await Episode.fork(tasks, state)
        assert (fork.turns, fork.opening) == (1, original.opening)
        outcome = await fork.step(ACTIONS[2])
        assert outcome.messages[0].content == "t/3ac"
    assert (await original.step(ACTIONS[2])).messages[0].content == "t/3abc"


async def test_a_snapshot_spares_playing_again() -> None:
    tasks = Made(Copied, later=" but louder")  # which a comparison with the record would not survive
    original = await Episode.begin(tasks, "t")
    await original.step(ACTIONS[0])
    fork = await Episode.fork(tasks, await original.boundary())
    assert tasks.instances[1].told == ["t/0", "a"]
    assert fork.turns == 1


@pytest.mark.parametrize("kind", [Counting, Secretive])
async def test_an_environment_that_does_not_repeat_itself_is_refused_by_what_it_says_and_by_its_state(kind) -> None:
    tasks = Made(kind, later="!")
    original = await Episode.begin(tasks, "t")
    await original.step(ACTIONS[0])
    state = await original.boundary()
    with pytest.raises(ForkRefused, match="after action 0 of task 't'"):
        await Episode.fork(tasks, state)
    assert tasks.instances[1].closed


async def test_a_different_opening_is_refused() -> None:
    tasks = Made(Counting)
    state = await (await Episode.begin(tasks, "t", seed=1)).boundary()
    with pytest.raises(ForkRefused, match="opened task 't' differently"):
        await Episode.fork(tasks, replace(state, seed=2))


async def test_an_environment_that_cannot_be_forked_says_why() -> None:
    episode = await Episode.begin(Made(Lasting), "t")
    with pytest.raises(ForkRefused, match="Lasting cannot be forked: it sends letters"):
        await episode.boundary()


async def test_a_step_that_hangs_is_the_environments_failure() -> None:
    class Hanging(Counting):
        async def step(self, action: Message) -> Outcome:
            await asyncio.Event().wait()
            return Outcome()

    episode = await Episode.begin(Made(Hanging), "t", limit=0.05)
    with pytest.raises(EnvironmentFailed, match=r"Hanging\.step did not return within 0\.05 s"):
        await episode.step(ACTIONS[0])


async def test_however_many_hang_another_one_has_its_turn() -> None:
    released = threading.Event()

    class Hanging(Counting):
        def step(self, action: Message) -> Outcome:
            released.wait()
            return Outcome()

    episodes = [await Episode.begin(Made(Hanging), "t") for _ in range(64)]
    hanging = [asyncio.create_task(episode.step(ACTIONS[0])) for episode in episodes]
    try:
        await asyncio.sleep(0)  # all of them have begun
        episode = await Episode.begin(Made(Counting), "t")
        assert (await episode.step(ACTIONS[0])).messages[0].content == "t/0a"
    finally:
        released.set()
    await asyncio.gather(*hanging)


async def test_an_environment_that_wants_to_end_the_program_ends_its_episode() -> None:
    class Exiting(Counting):
        async def step(self, action: Message) -> Outcome:
            raise SystemExit("bye")

    episode = await Episode.begin(Made(Exiting), "t")
    with pytest.raises(EnvironmentFailed, match=r"Exiting\.step raised SystemExit: bye"):
        await episode.step(ACTIONS[0])


async def test_an_environment_is_closed_when_its_start_fails_too() -> None:
    class Broken(Counting):
        def reset(self, task_id: str, *, seed: int = 0) -> tuple[Message, ...]:
            raise EnvironmentFailed("no luck")

    tasks = Made(Broken)
    with pytest.raises(EnvironmentFailed, match="no luck"):
        await Episode.begin(tasks, "t")
    assert tasks.instances[0].closed
