"""`stepwell eval`: of somebody else's server and of a model of this machine; stopped, it goes on; it compares."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from fastapi import FastAPI, Request, Response

from stepwell.pool.store import SQLitePool
from tests.cli.processes import Finished
from tests.fakes.servers import serving

Command = Callable[..., Finished]


class Server:
    """Speaks chat completions as servers do that know nothing of Stepwell, and answers every question with `reply`."""

    def __init__(self) -> None:
        self.reply = "The answer is \\boxed{42}."
        self.left: int | None = None
        """So many calls are answered, the others are failures of the server; None: all."""
        self.failure = Response('{"error": {"message": "overloaded"}}', 500, media_type="application/json")
        self.asked: list[tuple[str, dict[str, Any], str]] = []
        self.app = FastAPI()
        self.app.get("/v1/models")(lambda: {"data": [{"id": "theirs"}]})
        self.app.post("/{path:path}")(self._answer)

    async def _answer(self, path: str, request: Request) -> Response:
        self.asked.append((path, await request.json(), request.headers.get("authorization", "")))
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                return self.failure
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.reply}}
        usage = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        told = {"id": "x", "object": "chat.completion", "created": 1, "model": "theirs", "choices": [choice]}
        return Response(json.dumps({**told, "usage": usage}), media_type="application/json")


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def url(server: Server) -> Iterator[str]:
    with serving(server.app) as url:
        yield url


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "their-key")


def rows(path: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(path).to_pylist()
    return found


def test_a_server_that_is_no_gateway_is_asked_as_any_client_asks(command: Command, server: Server, url: str) -> None:
    done = command("eval", "arithmetic", "--url", f"{url}/v1", "--limit", "3", "--samples", "2", "--out", "out")
    assert done.code == 0, done.err
    items = rows("out/arithmetic.parquet")
    assert len(items) == 6
    assert {(item["response_tokens"], item["turns"], item["how"]) for item in items} == {(5, 1, "terminated")}
    assert {path for path, _, _ in server.asked} == {"v1/chat/completions"}
    assert {(body["model"], body["temperature"]) for _, body, _ in server.asked} == {("theirs", 1.0)}
    assert {key for _, _, key in server.asked} == {"Bearer their-key"}
    assert all("chat_template_kwargs" not in body for _, body, _ in server.asked)
    told = {row["metric"]: row for row in rows("out/summary.parquet") if not row["kind"]}
    assert (told["pass@1"]["items"], told["pass@1"]["model"]) == (3, "theirs")


def test_what_a_server_failed_at_is_no_item_and_is_asked_again(command: Command, server: Server, url: str) -> None:
    wanted = ("eval", "arithmetic", "--url", url, "--limit", "4", "--out", "out", "rollout.concurrency=1")
    server.left = 2
    failed = command(*wanted, "rollout.max_failures=0")
    assert failed.code == 1
    assert "2 items could not be played" in failed.err
    assert "overloaded" in failed.err
    server.left, server.asked = None, []
    assert command(*wanted).code == 0
    assert len(server.asked) == 2  # the others are kept
    assert len(rows("out/arithmetic.parquet")) == 4


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, '{"error": {"message": "slower"}}'),
        (401, '{"error": {"message": "who are you?"}}'),
        (400, '{"error": {"message": "bad \\ud800"}}'),
        (200, "<html>a proxy</html>"),
        (200, "null"),
        (200, '{"choices": []}'),
    ],
)
def test_what_a_server_does_wrong_is_no_fault_of_the_policy(
    command: Command, server: Server, url: str, status: int, body: str
) -> None:
    server.left, server.failure = 0, Response(body, status, media_type="application/json")
    done = command("eval", "arithmetic", "--url", url, "--limit", "1", "--out", "out", "rollout.max_failures=0")
    assert (done.code, "1 items could not be played" in done.err) == (1, True)
    assert len(Path("out/arithmetic.jsonl").read_text().splitlines()) == 1  # the settings
    server.left = None
    assert command("eval", "arithmetic", "--url", url, "--limit", "1", "--out", "out").code == 0


def test_another_server_is_another_evaluation_even_under_the_same_name(command: Command, url: str) -> None:
    base = ("eval", "arithmetic", "--limit", "1", "--out", "out", "--model", "m")
    assert command(*base, "--url", url).code == 0
    done = command(*base, "--url", url.replace("127.0.0.1", "localhost"))
    assert (done.code, "server was" in done.err) == (1, True)


def test_more_tasks_and_samples_add_to_what_is_there(command: Command, server: Server, url: str) -> None:
    base = ("eval", "arithmetic", "--url", url, "--out", "out", "--temperature", "1")
    command(*base, "--limit", "2")
    first = len(server.asked)
    command(*base, "--limit", "3", "--samples", "2")
    assert (first, len(server.asked)) == (2, 6)
    assert command(*base, "--limit", "2").code == 0
    assert len(rows("out/arithmetic.parquet")) == 2  # fewer are asked for, so fewer are told of; none is lost
    assert len(Path("out/arithmetic.jsonl").read_text().splitlines()) == 1 + 6


def test_other_settings_in_the_same_folder_are_refused(command: Command, url: str) -> None:
    base = ("eval", "arithmetic", "--url", url, "--out", "out", "--limit", "1")
    command(*base)
    done = command(*base, "--temperature", "0.5")
    assert done.code == 1
    assert "temperature was 0.0, is 0.5" in done.err


def test_two_evaluations_are_compared_on_the_same_tasks(command: Command, server: Server, url: str) -> None:
    base = ("eval", "arithmetic", "--url", url, "--limit", "3")
    command(*base, "--out", "before")
    done = command(*base, "--out", "after", "--against", "before")
    assert done.code == 0, done.err
    assert "arithmetic, answer, 3 tasks of both: theirs" in done.out
    assert "no difference shown" in done.out


def test_a_model_of_this_machine_is_served_by_a_gateway_and_its_steps_are_kept(command: Command) -> None:
    fitting = ("agent.max_tokens=8", "tool_format=line")
    done = command("eval", "lookup", "--model", "lookup", "--limit", "2", "--out", "out", *fitting)
    assert done.code == 0, done.err
    with closing(SQLitePool.open(Path("out/pool.sqlite"), read_only=True)) as pool:
        stats = pool.stats()
        kept = {(line.info.id, line.info.source) for _, line in pool.trajectories()}
    assert kept == {(row["trajectory_id"], "eval") for row in rows("out/lookup.parquet")}
    assert stats.steps > 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("arithmetic",), "say whom to evaluate"),
        (("--url", "http://127.0.0.1:1"), "name a benchmark"),
        (("gsm9k", "--model", "lookup"), "there is no benchmark 'gsm9k'"),
        (("arithmetic", "--model", "lookup", "--k", "4"), "--samples 4"),
        (("arithmetic", "--url", "http://127.0.0.1:1"), "no gateway answers"),
        (("own", "--model", "lookup"), "give --run"),
        (("arithmetic", "agents.max_tokens=5", "--url", "http://127.0.0.1:1"), "settings of a server are"),
        (("arithmetic", "--model", "lookup", "--solved-at", "nan"), "--solved-at must be a number"),
        (("arithmetic", "--model", "lookup", "--out", "/dev/null/x"), "cannot write to"),
    ],
)
def test_mistakes_are_named(command: Command, words: tuple[str, ...], says: str) -> None:
    done = command("eval", *words)
    assert done.code == 1
    assert says in done.err


def test_the_benchmarks_are_listed(command: Command) -> None:
    assert "gsm8k" in command("eval", "--list").out
