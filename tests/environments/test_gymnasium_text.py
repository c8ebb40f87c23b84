"""Environments of Gymnasium and GEM that speak text. Without the libraries these tests are skipped."""

import random
from pathlib import Path

import numpy as np
import pytest

from stepwell.environments.gymnasium_text import GymnasiumText, GymnasiumTextConfig
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency, NotFound
from stepwell.rollout.env import Forkable
from tests.environments.laws import opened, play, say

GAMES = "tests.environments.text_games"


@pytest.fixture(scope="module")
def gymnasium() -> None:
    pytest.importorskip("gymnasium", reason="needs: pip install 'stepwell[gymnasium]'")


def game(name: str, **settings: object) -> GymnasiumText:
    return GymnasiumTextConfig(id=f"{GAMES}:{name}-v0", **settings).build()  # type: ignore[arg-type]


@pytest.mark.usefixtures("gymnasium")
@pytest.mark.parametrize(("name", "fork"), [("Climb", "deepcopy"), ("Rooted", "replay"), ("Entangled", "replay")])
def test_only_what_is_seen_to_be_copied_well_is_copied(name: str, fork: str) -> None:
    tasks = game(name)
    assert tasks.fork == fork
    assert isinstance(tasks.make(), Forkable) == (fork == "deepcopy")


@pytest.mark.usefixtures("gymnasium")
def test_an_episode_is_gymnasiums_in_messages() -> None:
    tasks = game("Climb", instructions="Climb.")
    opening = opened(tasks, "train-0")
    assert [message.role for message in opening] == ["system", "user"]
    assert opening[1].content in ("You are at 0.", "You are at 1.")
    outcomes = play(tasks, "train-0", [say("up")])
    while not outcomes[-1].terminated:
        outcomes = play(tasks, "train-0", [say("up")] * (len(outcomes) + 1))
    assert 3 <= len(outcomes) <= 5
    assert [outcome.reward for outcome in outcomes] == [0.0] * (len(outcomes) - 1) + [1.0]


@pytest.mark.usefixtures("gymnasium")
def test_a_task_is_a_seed_and_splits_have_other_seeds() -> None:
    tasks = game("Shared", tasks=40)
    drawn = {
        task: play(tasks, task, [say("draw")])[0].messages for task in (*tasks.tasks("train"), *tasks.tasks("test"))
    }
    assert len(set(drawn.values())) == 80


@pytest.mark.usefixtures("gymnasium")
def test_what_an_environment_draws_from_generators_of_all_is_its_own_and_leaves_them_alone() -> None:
    tasks = game("Shared")
    alone = play(tasks, "train-0", [say("a")] * 3)
    random.seed(4)
    np.random.seed(4)
    expected = random.random(), np.random.random()
    random.seed(4)
    np.random.seed(4)
    one, other = tasks.make(), tasks.make()
    one.reset("train-0")
    other.reset("train-1")
    together = []
    for _ in range(3):
        together.append(one.step(say("a")))
        other.step(say("a"))
    assert together == alone
    assert (random.random(), np.random.random()) == expected


@pytest.mark.usefixtures("gymnasium")
def test_an_environment_that_breaks_is_the_environments_failure() -> None:
    environment = game("Broken").make()
    environment.reset("train-0")
    with pytest.raises(EnvironmentFailed, match="RuntimeError: the rope is torn"):
        environment.step(say("fall"))
    with pytest.raises(EnvironmentFailed, match="the reward is nan"):
        environment.step(say("pay"))


@pytest.mark.usefixtures("gymnasium")
def test_an_episode_that_does_not_end_is_truncated() -> None:
    *before, last = play(game("Broken", max_steps=4), "train-0", [say("wait")] * 4)
    assert not any(outcome.truncated for outcome in before)
    assert last.truncated


@pytest.mark.usefixtures("gymnasium")
def test_numbers_need_a_wrapper_and_get_one() -> None:
    with pytest.raises(ConfigError, match="does not speak text: it shows int; name a `wrapper`"):
        game("Numbers")
    tasks = game("Numbers", wrapper=f"{GAMES}:InWords")
    assert tasks.fork == "deepcopy"
    outcomes = play(tasks, "train-0", [say("7"), say("seven"), say("5")])
    assert [outcome.reward for outcome in outcomes] == [7.0, 0.0, 5.0]
    assert outcomes[0].messages[0].content == "The sum is 7."
    assert outcomes[-1].terminated


@pytest.mark.usefixtures("gymnasium")
def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot make"):
        game("Nothing")
    tasks = game("Climb")
    for task in ("train-x", "dev-1", "train-²"):
        with pytest.raises(NotFound):
            tasks.make().reset(task)
    with pytest.raises(InvalidRequest, match="no split"):
        tasks.tasks("dev")
    with pytest.raises(InvalidRequest, match="call reset first"):
        tasks.make().step(say("up"))


def test_a_library_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "gem", None)
    with pytest.raises(MissingDependency, match=r"stepwell\[gem\]"):
        GymnasiumTextConfig(id="game:Mastermind-v0-easy", library="gem").build()


@pytest.mark.parametrize(
    ("name", "action", "fork"),
    [
        ("game:Mastermind-v0-easy", r"\boxed{12}", "deepcopy"),
        ("game:Game2048-v0-easy", r"\boxed{up}", "deepcopy"),
        ("game:Sudoku-v0-easy", r"\boxed{1 1 1}", "replay"),
    ],
)
def test_games_of_gem_repeat_themselves_by_seed(name: str, action: str, fork: str) -> None:
    pytest.importorskip("gem", reason="needs: pip install 'stepwell[gem]'")
    tasks = GymnasiumTextConfig(id=name, library="gem").build()
    assert tasks.fork == fork
    assert opened(tasks, "train-0") == opened(tasks, "train-0")
    assert play(tasks, "train-0", [say(action)]) == play(tasks, "train-0", [say(action)])


def test_minigrid_plays_by_a_wrapper_of_the_docs(tmp_path: Path) -> None:
    pytest.importorskip("minigrid", reason="needs: pip install minigrid")
    (tmp_path / "words.py").write_text(MINIGRID)
    wrapper = f"{tmp_path / 'words.py'}:in_words"
    tasks = GymnasiumTextConfig(id="minigrid:BabyAI-GoToRedBallGrey-v0", wrapper=wrapper).build()
    assert tasks.fork == "deepcopy"
    (opening,) = opened(tasks, "train-0")
    assert opening.content.startswith("Task: go to the red ball")
    outcomes = play(tasks, "train-0", [say("left"), say("forward"), say("dance")])
    assert all(outcome.messages[0].content.startswith("Task: ") for outcome in outcomes)


MINIGRID = """
import gymnasium
from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT

ACTIONS = ("left", "right", "forward", "pickup", "drop", "toggle", "done")


class InWords(gymnasium.Wrapper):
    def reset(self, **settings):
        seen, about = self.env.reset(**settings)
        return self.worded(seen), about

    def step(self, action):
        known = action.strip().lower()
        number = ACTIONS.index(known) if known in ACTIONS else ACTIONS.index("done")
        seen, *rest = self.env.step(number)
        return self.worded(seen), *rest

    def sample_random_action(self):
        return ACTIONS[self.env.action_space.sample()]

    def worded(self, seen):
        things = [
            f"a {IDX_TO_COLOR[color]} {IDX_TO_OBJECT[kind]}, {6 - y} ahead and {x - 3} to the right"
            for x, column in enumerate(seen["image"])
            for y, (kind, color, _) in enumerate(column)
            if IDX_TO_OBJECT[kind] not in ("unseen", "empty", "wall")
        ]
        return f"Task: {seen['mission']}. You see {'; '.join(things) or 'nothing'}."


def in_words(environment):
    return InWords(environment)
"""
