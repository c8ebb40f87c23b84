"""TextWorldExpress. Without its package, or without Java, these tests are skipped."""

import asyncio
import shutil

import pytest

from stepwell.environments.textworld_express import TextWorldExpress, TextWorldExpressConfig
from stepwell.errors import ConfigError, EnvironmentFailed, InvalidRequest, MissingDependency
from stepwell.rendering.messages import Message
from stepwell.rollout.episode import Episode
from tests.environments.laws import call, play, say

KINDS = ("cookingworld", "twc", "coin", "mapreader", "arithmetic", "simonsays", "peckingorder")


@pytest.fixture(scope="module", autouse=True)
def java() -> None:
    pytest.importorskip("textworld_express", reason="needs: pip install 'stepwell[textworld-express]'")
    if shutil.which("java") is None:
        pytest.skip("needs Java: apt-get install default-jre-headless")


@pytest.fixture(scope="module")
def coin(java: None) -> TextWorldExpress:
    return TextWorldExpressConfig().build()


def acting(*commands: str) -> list[Message]:
    return [call("act", command=command) for command in commands]


@pytest.mark.parametrize("kind", KINDS)
def test_the_games_own_solution_earns_one_in_all(kind: str) -> None:
    tasks = TextWorldExpressConfig(game=kind, max_steps=100).build()  # type: ignore[arg-type]
    task = tasks.tasks("train")[3]
    environment, outcomes = tasks.make(), []
    environment.reset(task)
    for action in acting(*tasks.walkthrough(task)):
        outcomes.append(environment.step(action))
        if outcomes[-1].terminated:
            break
    assert outcomes[-1].terminated
    assert sum(outcome.reward for outcome in outcomes) == pytest.approx(1.0)


def test_the_folds_have_a_thousand_games_each_and_share_none(coin: TextWorldExpress) -> None:
    folds = [coin.tasks(split) for split in ("train", "dev", "test")]
    assert [len(fold) for fold in folds] == [1000, 1000, 1000]
    assert folds[0][:2] == ("train-0", "train-1")
    assert len({task.rpartition("-")[2] for fold in folds for task in fold}) == 3000
    with pytest.raises(InvalidRequest, match="no split 'valid'"):
        coin.tasks("valid")


def test_the_opening_names_the_task_and_what_is_possible_only_if_wanted(coin: TextWorldExpress) -> None:
    told = TextWorldExpressConfig(admissible=True).build()
    _, plain = coin.make().reset("train-3")
    _, listed = told.make().reset("train-3")
    assert plain.content.startswith("Your task is to search the environment and find the coin.")
    assert listed.content.startswith(plain.content + "\nYou can: close door to east; ")


def test_plain_text_plays_too() -> None:
    tasks = TextWorldExpressConfig(interface="text").build()
    outcomes = play(tasks, "train-3", [say("Let me see.\nlook around"), say("take coin")])
    assert outcomes[0].messages[0].role == "user"
    assert outcomes[-1].terminated
    assert outcomes[-1].reward == 1.0


@pytest.mark.parametrize("kind", KINDS)
async def test_games_run_at_once_in_one_machine_even_the_same_one(kind: str) -> None:
    tasks = TextWorldExpressConfig(game=kind, admissible=True).build()  # type: ignore[arg-type]

    of = tasks.tasks("train")[:4]
    scripts = {task: acting(*tasks.walkthrough(task)[:5]) for task in of}  # its solver finds another way each time

    async def played(task: str) -> list[object]:
        episode = await Episode.begin(tasks, task)
        outcomes: list[object] = []
        for action in scripts[task]:
            outcome = await episode.step(action)
            outcomes.append(outcome)
            if outcome.terminated:
                break
        await episode.close()
        return outcomes

    alone = [await played(task) for task in of]
    assert await asyncio.gather(*map(played, of * 3)) == alone * 3


def test_parameters_that_the_game_does_not_take_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not take the parameters 'nonsense=3'"):
        TextWorldExpressConfig(parameters="nonsense=3").build()


def test_a_machine_that_dies_fails_its_episodes_and_not_the_next_ones() -> None:
    tasks = TextWorldExpressConfig().build()
    environment = tasks.make()
    opening = environment.reset("train-3")
    process = tasks._machine._gateway.java_process
    process.kill()
    process.wait()
    with pytest.raises(EnvironmentFailed, match="Java failed"):
        environment.step(call("act", command="look around"))
    environment.close()
    assert tasks.make().reset("train-3") == opening


def test_without_java_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingDependency, match="needs Java"):
        TextWorldExpressConfig().build()


def test_a_step_without_an_episode_is_refused(coin: TextWorldExpress) -> None:
    with pytest.raises(InvalidRequest, match="call reset first"):
        coin.make().step(say("look around"))
