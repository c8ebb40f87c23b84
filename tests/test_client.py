"""The Python client against a real gateway on loopback."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

import stepwell
from stepwell.errors import (
    Conflict,
    Forbidden,
    InvalidRecord,
    InvalidRequest,
    NotFound,
    Unauthorized,
    Unavailable,
)
from stepwell.gateway.app import create_app
from stepwell.gateway.keys import KeyRing
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, Step
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.servers import free_port, serving

USER = {"role": "user", "content": "hello"}


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite")
    yield pool
    pool.close()


@pytest.fixture
def start(pool: SQLitePool) -> Iterator[Callable[..., str]]:
    """Start a gateway, with keys if the test gives some; gives its URL."""
    renderer = tiny_renderer("line")
    with ExitStack() as stack:

        def started(keys: KeyRing | None = None) -> str:
            return stack.enter_context(serving(create_app(ScriptedEngine(renderer), renderer, pool, keys=keys)))

        yield started


@pytest.fixture
def client(start: Callable[..., str]) -> Iterator[stepwell.Client]:
    with stepwell.Client(start()) as client:
        yield client


def a_step(trajectory_id: str, index: int = 0) -> Step:
    return Step(
        id=f"{trajectory_id}-{index}",
        trajectory_id=trajectory_id,
        index=index,
        prompt_ids=[1, 2],
        response_ids=[3],
        logprobs=[-0.5],
    )


def ask(session: stepwell.Session | stepwell.AsyncSession) -> str:
    with OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=0) as openai:
        return openai.chat.completions.create(model="tiny", messages=[USER]).id


def test_a_trajectory_submitted_step_by_step_reads_back_as_the_pool_has_it(client, pool):
    group = client.open_group("task", 1, channel="run", deadline=2e9)
    name = client.open_trajectory(group_id=group, task_id="task", agent="mine")
    steps = [a_step(name, index) for index in range(3)]
    receipts = client.submit([*steps, Annotation.reward("step", steps[0].id, 0.5, "part")])
    client.reward(1, trajectory_id=name, text="well done")
    client.end(name, "truncated", "limit")
    stored = client.trajectory(name)
    assert [receipt.error for receipt in receipts] == [None] * 4
    assert stored == pool.trajectory(name)
    assert stored.steps == tuple(steps)
    assert (stored.reward, stored.status, stored.why, stored.info.agent) == (1.5, "truncated", "limit", "mine")
    assert (pool.group(group).info.channel, pool.group(group).info.deadline) == ("run", 2e9)
    assert client.stats() == pool.stats()


def test_each_record_of_a_batch_has_its_own_receipt_and_the_same_again_is_a_duplicate(client):
    name = client.open_trajectory()
    stray, conflicting = a_step("nowhere"), Step(**{**vars_of(a_step(name)), "response_ids": [4]})
    first = client.submit([a_step(name), stray, conflicting])
    again = client.submit([a_step(name)])
    assert [type(receipt.error) for receipt in first] == [type(None), NotFound, Conflict]
    assert (again[0].duplicate, again[0].cursor) == (True, first[0].cursor)
    assert [type(receipt.error) for receipt in client.submit([stray])] == [NotFound]
    assert client.submit([]) == []


def vars_of(step: Step) -> dict[str, object]:
    names = ("id", "trajectory_id", "index", "prompt_ids", "logprobs")
    return {name: getattr(step, name) for name in names}


def test_a_session_records_the_calls_of_an_unmodified_client_and_ends_with_its_block(client, pool):
    with client.session(task_id="42", agent="solver") as session:
        ask(session)
        session.reward(0.75)
    stored = pool.trajectory(session.trajectory_id)
    assert (stored.status, stored.reward, len(stored.steps)) == ("terminated", 0.75, 1)
    assert (stored.info.task_id, stored.info.agent) == ("42", "solver")
    assert session.base_url == f"{client.base_url}/t/{session.trajectory_id}/v1"
    assert session.anthropic_base_url == f"{client.base_url}/t/{session.trajectory_id}"


def test_the_key_of_a_session_is_enough_to_join_it(client, pool):
    with (
        client.session() as session,
        OpenAI(base_url=client.base_url + "/v1", api_key=session.api_key, max_retries=0) as openai,
    ):
        openai.chat.completions.create(model="tiny", messages=[USER])
    assert len(pool.trajectory(session.trajectory_id).steps) == 1


def test_a_session_whose_block_raises_has_failed_and_the_error_goes_on(client, pool):
    with pytest.raises(ZeroDivisionError), client.session() as session:
        raise ZeroDivisionError("by\0 zero \ud800")
    stored = pool.trajectory(session.trajectory_id)
    assert (stored.status, stored.why) == ("failed", "ZeroDivisionError: by zero ?")


def test_a_session_can_be_ended_in_its_own_way(client, pool):
    with client.session() as session:
        session.end("truncated", "ten steps")
    assert pool.trajectory(session.trajectory_id).status == "truncated"
    with pytest.raises(KeyError):
        fail_after_the_end(client)
    assert pool.trajectories()[0][1].status == "terminated"


def fail_after_the_end(client: stepwell.Client) -> None:
    with client.session() as session:
        session.end()
        raise KeyError


def test_each_call_of_a_recorded_function_is_a_session_and_its_result_may_be_the_reward(client, pool):
    ids = []

    @client.recorded(task_id="sum", rewarded=True)
    def solve(session: stepwell.Session, a: int, *, b: int) -> int:
        """Add."""
        ids.append(session.trajectory_id)
        return a + b

    assert (solve(1, b=2), solve(3, b=4), solve.__doc__) == (3, 7, "Add.")
    stored = [pool.trajectory(name) for name in ids]
    assert [(t.reward, t.status, t.info.agent) for t in stored] == [
        (3, "terminated", "solve"),
        (7, "terminated", "solve"),
    ]


def test_a_rewarded_function_that_returns_no_number_fails(client, pool):
    @client.recorded(rewarded=True)
    def solve(session: stepwell.Session) -> str:
        return session.trajectory_id

    with pytest.raises(InvalidRequest, match="must return its reward"):
        solve()
    assert pool.trajectories()[0][1].status == "failed"


def test_feedback_and_events_are_annotations_that_read_back(client):
    with client.session() as session:
        answer_id = ask(session)
    client.feedback(stepwell.Feedback(response_id=answer_id, thumbs="down", comment="rude", reward=True))
    receipts = client.events(
        stepwell.Event(conversation=session.trajectory_id, type="user_turn", text="bye", created_at=5.0),
        stepwell.Event(response_id="resp_nowhere", type="user_turn"),
    )
    thumbs, event = client.trajectory(session.trajectory_id).annotations
    assert (thumbs.kind, thumbs.name, thumbs.value, thumbs.text, thumbs.target) == (
        "feedback",
        "thumbs",
        -1.0,
        "rude",
        "step",
    )
    assert (event.kind, event.name, event.text, event.created_at) == ("event", "user_turn", "bye", 5.0)
    assert [type(receipt.error) for receipt in receipts] == [type(None), NotFound]
    assert client.trajectory(session.trajectory_id).reward == -1.0
    with pytest.raises(InvalidRecord, match="one of thumbs"):
        client.feedback(stepwell.Feedback(conversation=session.trajectory_id))


def test_refusals_are_the_errors_that_they_are(client):
    with pytest.raises(NotFound):
        client.trajectory("nowhere/at all")
    with pytest.raises(NotFound):
        client.end("nowhere")
    with pytest.raises(InvalidRequest):
        client.reward(1)
    with pytest.raises(NotFound), client.session(group_id="nowhere"):
        pass


def test_a_key_is_sent_and_its_scope_decides(start, tmp_path):
    keys = KeyRing.open(tmp_path / "keys.json")
    url = start(keys)
    with stepwell.Client(url + "/v1", keys.create("me", ["ingest"])) as client, client.session() as session:
        ask(session)
        with pytest.raises(Forbidden):
            client.stats()
    with stepwell.Client(url, "swk_wrong") as stranger, pytest.raises(Unauthorized):
        stranger.open_trajectory()


async def test_the_asynchronous_client_does_the_same(start, pool):
    async with stepwell.AsyncClient(start()) as client:
        group = await client.open_group("task", 2)
        name = await client.open_trajectory(group_id=group)
        assert [receipt.error for receipt in await client.submit([a_step(name)])] == [None]
        await client.end(name, "truncated")

        @client.recorded(group_id=group, rewarded=True)
        async def solve(session: stepwell.AsyncSession, reward: float) -> float:
            async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as openai:
                await openai.chat.completions.create(model="tiny", messages=[USER])
            await client.feedback(stepwell.Feedback(conversation=session.trajectory_id, score=0.5))
            await client.events(stepwell.Event(conversation=session.trajectory_id, type="system"))
            return reward

        assert await solve(1.0) == 1.0
        with pytest.raises(KeyError):
            await fail_with_a_reward(client, group)
        stored = pool.group(group).trajectories
        assert [(t.status, t.reward) for t in stored] == [("truncated", None), ("terminated", 1.0), ("failed", 2.0)]
        assert [note.kind for note in stored[1].annotations] == ["feedback", "event"]
        assert await client.stats() == pool.stats()
    async with stepwell.AsyncClient(f"http://127.0.0.1:{free_port()}", retries=0) as nobody:
        with pytest.raises(Unavailable):
            await nobody.stats()


async def fail_with_a_reward(client: stepwell.AsyncClient, group: str) -> None:
    async with client.session(group_id=group) as session:
        await session.reward(2.0, name="part")
        raise KeyError


@contextmanager
def troubled(url: str, troubles: list[int | None]) -> Iterator[tuple[str, list[bytes]]]:
    """A way to `url` that loses one answer after the other: a status is sent instead, None closes the connection. What
    was asked has happened all the same. Gives its URL and the bodies that it saw."""
    seen: list[bytes] = []

    class Way(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            seen.append(body)
            answer = httpx.post(url + self.path, content=body)
            trouble = troubles.pop(0) if troubles else answer.status_code
            if trouble is None:
                return
            self.send_response(trouble)
            self.send_header("retry-after", "0")
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Way)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_a_request_whose_answer_was_lost_is_sent_again_and_stored_once(start, pool):
    with troubled(start(), [503, None, 429]) as (url, seen), stepwell.Client(url, retries=3) as client:
        name = client.open_trajectory()
    assert (len(seen), len(set(seen)), pool.trajectory(name).info.id) == (4, 1, name)
    assert pool.stats().trajectories == 1


async def test_the_asynchronous_client_sends_again_too(start, pool):
    with troubled(start(), [502, None]) as (url, seen):
        async with stepwell.AsyncClient(url, retries=2) as client:
            await client.open_trajectory()
    assert (len(seen), pool.stats().trajectories) == (3, 1)


def test_the_last_attempt_decides(start):
    with troubled(start(), [None] * 9) as (url, seen), stepwell.Client(url, retries=1) as client:
        with pytest.raises(Unavailable, match="does not answer"):
            client.open_trajectory()
        assert len(seen) == 2


def test_an_answer_that_is_no_gateways_is_unavailable_not_a_crash():
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<html>" if "stats" in self.path else json.dumps(["odd"]).encode()
            self.send_response(404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with stepwell.Client(f"http://127.0.0.1:{server.server_address[1]}", retries=0) as client:
        for call in (client.stats, lambda: client.trajectory("t")):
            with pytest.raises(Unavailable):
                call()
    server.shutdown()
    server.server_close()


def test_the_code_of_the_how_to_runs(start, pool, tmp_path, capsys):
    page = Path(__file__).parents[1] / "docs" / "howto" / "give_feedback.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    exec(code.replace("http://127.0.0.1:8000", start()).replace("smollm2-135m", "tiny"), {"__name__": "howto"})
    assert capsys.readouterr().out == "terminated -1.0 ['thumbs', 'edit'] [0.0, 0.0, 0.0, 0.0]\n"
    assert (pool.stats().groups_ready, pool.trajectory("chat-7").info.source) == (1, "events")


def test_the_package_itself_imports_nothing_until_the_client_is_asked_for():
    heavy = "*(name for name in ('torch', 'fastapi', 'sqlalchemy') if name in sys.modules)"
    probe = f"import sys, stepwell; print('httpx' in sys.modules, bool(stepwell.Client), {heavy})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False True"
    with pytest.raises(AttributeError):
        _ = stepwell.Nothing
