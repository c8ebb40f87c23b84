"""The feed from Python in another process: leases, acknowledgements, listings and the live log, over loopback."""

import inspect
import json
import random
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing
from itertools import islice
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import stepwell
from stepwell import errors
from stepwell.client import listings
from stepwell.client.feed import Wanted
from stepwell.client.pool import PoolClient
from stepwell.client.requests import error_of
from stepwell.curation.rules.zero_advantage import ZeroAdvantage
from stepwell.curation.selection import Selection
from stepwell.errors import Conflict, InvalidRequest, NoProducer, NotFound, Unavailable
from stepwell.gateway.app import create_app
from stepwell.gateway.keys import KeyRing
from stepwell.gateway.problems import STATUS
from stepwell.pool.arrays import step_arrays
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import SQLitePool
from stepwell.types import Annotation, TrajectoryInfo, UpdateInfo
from tests.fakes.engines import ScriptedEngine
from tests.fakes.models import tiny_renderer
from tests.fakes.relay import relay
from tests.fakes.servers import free_port, serving
from tests.pool.builders import complete_trajectory, ready_group
from tests.pool.conftest import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def pool(tmp_path: Path, clock: FakeClock) -> Iterator[SQLitePool]:
    pool = SQLitePool.open(tmp_path / "pool.sqlite", clock=clock)
    yield pool
    pool.close()


@pytest.fixture
def url(pool: SQLitePool) -> Iterator[str]:
    renderer = tiny_renderer("line")
    with serving(create_app(ScriptedEngine(renderer), renderer, pool)) as url:
        yield url


@pytest.fixture
def client(url: str) -> Iterator[stepwell.Client]:
    with stepwell.Client(url) as client:
        yield client


def test_a_lease_holds_the_arrays_of_its_units_with_the_names_and_dtypes_of_the_reference(client, pool, clock):
    pool.put(*ready_group("g", version=3))
    lease = client.lease("trainer", seconds=30)
    assert lease.arrays == step_arrays([pool.group("g")])
    assert (len(lease), lease.arrays.group_ids, lease.expires_at) == (1, ("g",), clock() + 30)
    assert (lease.arrays.token_ids.dtype, lease.arrays.logprobs.dtype) == (np.int32, np.float32)
    assert not client.lease("trainer")


def test_every_field_of_a_lease_is_a_keyword_and_arrives(client, pool):
    assert get_type_hints(Wanted).keys() == LeaseSpec.model_fields.keys() - {"consumer", "wait"}
    for name, version in (("a", 1), ("b", 5), ("c", 5)):
        pool.put(*ready_group(name, version=version))
    pool.put(Annotation.tag("trajectory", "b-0", "good"), Annotation.tag("trajectory", "b-1", "good"))
    pool.save_selection("good", Selection(tags=("good",)))
    pool.freeze("d", Selection(group_ids=("a",)))
    ask = {"limit": 9, "unit": "group", "seed": 1, "max_tokens": None}

    def got(consumer, **wanted):
        return client.lease(consumer, **ask, **wanted).arrays.group_ids

    assert got("1", max_staleness=2, policy_version=6, order="fifo") == ("b", "c")
    assert got("2", order="freshest", max_steps=4) == ("c", "b")
    assert got("3", selection="good", epoch=7) == ("b",)
    assert got("4", selection=Selection(rules=(ZeroAdvantage(),))) == ()
    assert got("5", dataset="d") == ("a",)


def test_a_lease_that_makes_no_sense_is_refused_before_or_by_the_gateway(client):
    for wish in ({"limit": 0}, {"oder": "fifo"}, {"wait": -1.0}, {"wait": float("nan")}):
        with pytest.raises(InvalidRequest, match=next(iter(wish))):
            client.lease("c", **wish)
    with pytest.raises(NotFound, match="no dataset"):
        client.lease("c", dataset="nowhere")
    with pytest.raises(NotFound):
        client.lease("c", selection="nowhere")


def test_a_block_that_ends_well_acknowledges_and_one_that_raises_gives_back_with_its_reason(client, pool, caplog):
    pool.put(*ready_group("g"))
    with pytest.raises(ZeroDivisionError), client.lease("c") as lease:
        raise ZeroDivisionError("by zero")
    assert f"lease {lease.id} was given back: 'ZeroDivisionError: by zero'" in caplog.text
    with client.lease("c") as again:
        assert again.arrays.group_ids == ("g",)
    (own,) = client.consumption()
    assert (own.consumer, own.held, own.acknowledged, own.steps, own.tokens) == ("c", 0, 1, 2, 8)


def test_a_block_that_settled_its_lease_itself_is_left_alone(client, pool):
    pool.put(*ready_group("g"))
    with client.lease("c") as lease:
        lease.nack()
    with pytest.raises(KeyError), client.lease("c") as lease:
        fail_after(lease.ack)
    assert [own.acknowledged for own in client.consumption()] == [1]


def fail_after(doing: Callable[[], None]) -> None:
    doing()
    raise KeyError


def test_the_error_of_a_block_is_not_hidden_by_a_gateway_that_is_gone(pool, caplog):
    renderer = tiny_renderer("line")
    pool.put(*ready_group("g"))
    with ExitStack() as server:
        url = server.enter_context(serving(create_app(ScriptedEngine(renderer), renderer, pool)))
        with stepwell.Client(url, retries=0) as client, pytest.raises(KeyError), client.lease("c"):
            fail_after(server.close)
    assert "so its units come again when it expires" in caplog.text


def test_what_was_not_acknowledged_in_time_is_handed_over_again_and_the_late_one_is_told(client, pool, clock):
    pool.put(*ready_group("g"))
    slow = client.lease("c", seconds=30)
    clock.advance(20)
    assert slow.extend(30) == slow.expires_at == clock() + 30
    clock.advance(29)
    assert not client.lease("c")
    clock.advance(2)
    other = client.lease("c")
    assert other.arrays.step_ids == slow.arrays.step_ids
    with pytest.raises(Conflict, match="handed over again"):
        slow.ack()
    with pytest.raises(Conflict):
        slow.extend()
    other.ack()
    other.ack()
    clock.advance(10_000)
    assert not client.lease("c")
    assert client.lease("c", epoch=1)


def test_two_consumers_of_one_name_get_every_step_exactly_once(client, url, pool):
    for number in range(40):
        pool.put(*ready_group(f"g{number}"))
    steps: Counter[str] = Counter()

    def consume() -> list[str]:
        with stepwell.Client(url) as own:
            return [step for lease in own.leases("c", limit=3, wait=0) for step in lease.arrays.step_ids]

    with ExitStack() as stack:
        found: list[list[str]] = []
        threads = [threading.Thread(target=lambda: found.append(consume())) for _ in range(2)]
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
    for part in found:
        steps.update(part)
    assert len(found) == 2
    assert set(steps.values()) == {1}
    assert len(steps) == 80
    assert [(own.held, own.acknowledged) for own in client.consumption()] == [(0, 40)]


def test_a_loop_over_leases_acknowledges_each_when_the_next_is_asked_for_and_gives_back_where_it_is_left(client, pool):
    pool.put(*ready_group("a"), *ready_group("b"), *ready_group("c"))
    for lease in client.leases("c"):
        if lease.arrays.group_ids == ("b",):
            break
        assert client.consumption()[0].acknowledged == 0
    assert [(own.held, own.acknowledged) for own in client.consumption()] == [(0, 1)]
    rest = [lease.arrays.group_ids for lease in client.leases("c", wait=0)]
    assert rest == [("b",), ("c",)]


def test_a_loop_waits_for_what_comes(client, pool):
    timer = threading.Timer(0.2, lambda: pool.put(*ready_group("late")))
    timer.start()
    lease = next(client.leases("c"))
    assert lease.arrays.group_ids == ("late",)
    timer.join()


def test_a_restarted_consumer_gives_back_what_it_held(client, pool):
    pool.put(*ready_group("a"), *ready_group("b"))
    held = [client.lease("c"), client.lease("c")]
    assert client.nack_all("c") == len(held)
    assert len(client.lease("c", limit=9)) == 2


def test_waiting_where_nobody_produces_is_an_error_with_the_gateways_words_and_not_tried_again(pool):
    renderer, asked = tiny_renderer("line"), []
    app = create_app(ScriptedEngine(renderer), renderer, pool)

    async def without_lifespan(scope, receive, send):
        """So it is no producer itself."""
        assert scope["type"] == "http"
        asked.append(scope["path"])
        await app(scope, receive, send)

    pool.heartbeat("gone", 1)
    pool._storage.clock.advance(11)
    with serving(without_lifespan) as url, stepwell.Client(url) as client:
        with pytest.raises(NoProducer, match=r"10 s too long ago\. Start the gateway"):
            client.lease("c", wait=30)
        client.heartbeat("me/and you", 60)
        assert not client.lease("c", wait=0.05)
    assert asked.count("/v1/leases") == 2


def test_a_gateway_that_is_gone_is_unavailable():
    with stepwell.Client(f"http://127.0.0.1:{free_port()}", retries=0) as nobody:
        for ask in (lambda: nobody.lease("c"), lambda: next(nobody.tail(after=0))):
            with pytest.raises(Unavailable, match="does not answer"):
                ask()


def test_every_code_of_the_gateway_is_an_error_that_has_a_name():
    for kind, (_, _, code) in STATUS.items():
        read = type(error_of({"code": code, "message": ""}))
        assert issubclass(kind, read)
        assert read is not errors.StepwellError, code


def test_listings_are_read_page_by_page_to_their_end(client, pool, monkeypatch):
    monkeypatch.setattr(listings, "PAGE", 2)
    for name in "abc":
        pool.put(*ready_group(name, size=1))
    pool.put(Annotation.verdict("trajectory", "b-0", "reject"))
    everything = [line for _, line in pool.trajectories()]
    assert list(client.trajectories()) == everything
    assert [line.info.id for line in client.trajectories(Selection())] == ["c-0", "a-0"]
    assert [line.info.id for line in client.trajectories(Selection(verdicts=("reject",)))] == ["b-0"]
    assert list(client.groups()) == [line for _, line in pool.groups()]
    assert list(client.groups("nowhere")) == []
    pool.put(*complete_trajectory("d-0", None))
    assert client.refills() == pool.refills() == []


def test_curation_over_the_wire_is_that_of_the_pool(client, pool):
    pool.put(*ready_group("a", size=1), *ready_group("b", size=1))
    client.submit([Annotation.verdict("trajectory", "a-0", "reject"), Annotation.tag("trajectory", "b-0", "good")])
    wanted = Selection(tags=("good",), rules=(ZeroAdvantage(),))
    client.save_selection("good one", wanted)
    assert (client.selections(), client.selection("good one")) == (["good one"], wanted)
    assert [line.info.id for line in client.trajectories("good one")] == ["b-0"]
    made = [client.freeze("d", Selection(tags=("good",)), unit="trajectory"), client.freeze("d", Selection())]
    assert [one.version for one in made] == [1, 2]
    assert client.datasets() == pool.datasets() == made[::-1]
    assert (client.trajectory("a-0").verdict, client.trajectory("b-0").tags) == ("reject", ("good",))
    lease = client.lease("c", limit=9)
    assert lease.arrays.group_ids == ("b",)
    (own,) = client.consumption()
    assert own.dropped == pool.consumption()[0].dropped
    assert [type(count) for _, count in own.dropped] == [int]


def test_refills_say_which_groups_lack_trajectories(client, pool):
    pool.put(*ready_group("g", size=3)[:1])
    (refill,) = client.refills("default")
    assert (refill, refill.missing) == (pool.refills()[0], 3)


def test_a_group_is_given_up_with_its_reason(client, pool):
    pool.put(*ready_group("g", size=3)[:1])
    client.drop_group("g", "the environment is gone")
    assert pool.stats().groups_dropped == (("the environment is gone", 1),)
    with pytest.raises(NotFound, match="no group 'nobody'"):
        client.drop_group("nobody", "why")


def everything_of(pool):
    return [(cursor, record) for cursor, record in pool.log(limit=1000)]


@pytest.mark.parametrize("seed", range(2))
def test_a_tail_whose_connection_is_cut_again_and_again_misses_and_repeats_nothing(url, pool, seed):
    budgets = [random.Random(seed).randrange(400, 4000) for _ in range(5)]
    for number in range(4):
        pool.put(*ready_group(f"g{number}"), UpdateInfo(run="r", policy_version=number, metrics=(("loss", 0.5),)))
    with relay(url, budgets) as way, stepwell.Client(way.url, retries=20) as client:
        tail = client.tail(after=0)
        seen = [(logged.cursor, logged.record) for logged in islice(tail, 40)]
        pool.put(TrajectoryInfo(id="later \u2028 \x85"))
        seen += [(logged.cursor, logged.record) for logged in islice(tail, 1)]
        tail.close()
        assert way.made > len(budgets)
    assert seen == everything_of(pool)


def test_a_tail_begins_now_unless_told_otherwise(client, pool):
    pool.put(TrajectoryInfo(id="old"))
    got = []
    thread = threading.Thread(target=lambda: got.append(next(client.tail())))
    thread.start()
    while not got:
        pool.put(TrajectoryInfo())
        thread.join(0.2)
    assert got[0].record.id != "old"
    assert pool.log(after=got[0].cursor - 1, limit=1) == [(got[0].cursor, got[0].record)]


def test_a_tail_that_may_not_read_is_refused(tmp_path, pool):
    keys, renderer = KeyRing.open(tmp_path / "keys.json"), tiny_renderer("line")
    key = keys.create("me", ["ingest"])
    with (
        serving(create_app(ScriptedEngine(renderer), renderer, pool, keys=keys)) as url,
        stepwell.Client(url, key) as client,
        pytest.raises(errors.Forbidden),
    ):
        next(client.tail(after=0))


def test_the_pools_failure_ends_a_tail_with_its_name(client, pool, monkeypatch):
    def broken(**_):
        raise errors.PoolError("disk full")

    monkeypatch.setattr(pool, "log", broken)
    with pytest.raises(errors.PoolError, match="disk full"):
        next(client.tail(after=0))


async def test_the_asynchronous_client_does_the_same(url, pool):
    pool.put(*ready_group("a"), *ready_group("b"), UpdateInfo(run="r", policy_version=1))
    async with stepwell.AsyncClient(url) as client:
        with pytest.raises(KeyError):
            await fail(client)
        async with await client.lease("c", seconds=60) as lease:
            assert lease.arrays.group_ids == ("a",)
            assert await lease.extend(90) == lease.expires_at
        async with aclosing(client.leases("c")) as leases:
            assert (await anext(leases)).arrays.group_ids == ("b",)
        assert [(own.held, own.acknowledged) for own in await client.consumption()] == [(0, 1)]
        assert [lease.arrays.group_ids async for lease in client.leases("c", wait=0)] == [("b",)]
        assert await client.nack_all("c") == 1  # the empty one, with which the loop ended
        await client.heartbeat("me")
        assert [line.info.id async for line in client.trajectories()] == ["b-1", "b-0", "a-1", "a-0"]
        assert [line.info.id async for line in client.groups()] == ["b", "a"]
        await client.save_selection("all", Selection())
        assert (await client.selections(), await client.selection("all")) == (["all"], Selection())
        made = await client.freeze("d", "all")
        assert (await client.datasets(), await client.refills()) == ([made], [])
    with relay(url, [600, 2000]) as way:
        async with stepwell.AsyncClient(way.url, retries=20) as client, aclosing(client.tail(after=0)) as tail:
            seen = [await anext(tail) for _ in everything_of(pool)]
    assert [(logged.cursor, logged.record) for logged in seen] == everything_of(pool)


async def fail(client: stepwell.AsyncClient) -> None:
    async with await client.lease("c"):
        raise KeyError


def test_the_asynchronous_client_mirrors_the_ordinary_one():
    pairs = ((stepwell.Client, stepwell.AsyncClient), (stepwell.Lease, stepwell.AsyncLease))
    for one, other in pairs:
        names = {name for name in dir(one) if not name.startswith("_")}
        assert names == {name for name in dir(other) if not name.startswith("_")}
        for name in names:
            methods = getattr(one, name), getattr(other, name)
            if callable(methods[0]):
                first, second = (list(inspect.signature(method).parameters) for method in methods)
                assert first == second, name


def test_a_pool_client_consumes_as_a_pool_does(url, pool, clock):
    pool.put(*ready_group("a"), *ready_group("b"), Annotation.tag("trajectory", "a-0", "good"))
    remote = PoolClient(url)
    lease = remote.lease(LeaseSpec(consumer="c", limit=1))
    assert (lease.groups, lease.consumer) == ((pool.group("a"),), "c")
    assert remote.extend(lease.id, 5) == clock() + 5
    remote.release(lease.id)
    lease = remote.lease(LeaseSpec(consumer="c", limit=2, wait=5))
    remote.acknowledge(lease.id)
    assert remote.lease(LeaseSpec(consumer="c", wait=0.05)).groups == ()
    other = remote.lease(LeaseSpec(consumer="d"))
    assert remote.release_all("d") == 1
    with pytest.raises(Conflict, match="released"):
        remote.acknowledge(other.id)
    remote.close()


@pytest.mark.parametrize(
    ("page", "prints"),
    [
        (
            "consume_the_feed.md",
            """\
2 groups, 4 trajectories, 16 tokens
1 groups, 2 trajectories, 8 tokens
trainer 0 holds 0 had 3 never got {}
trainer 1 holds 0 had 1 never got {}
1 GroupInfo
2 TrajectoryInfo
3 Step
4 Annotation
5 Annotation
3 groups are ready, 0 lack trajectories
True True
True True
""",
        ),
        ("curate.md", "checked@1 1 trajectory 64\nTrue\n"),
    ],
)
def test_the_code_of_the_how_tos_runs(url, pool, tmp_path, capsys, page, prints):
    pool.put(*ready_group("a"), *ready_group("b"), *ready_group("c"))
    text = (Path(__file__).parents[1] / "docs" / "howto" / page).read_text(encoding="utf-8")
    code = "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    code = code.replace("http://127.0.0.1:8000", url).replace("runs/serve.sqlite", str(tmp_path / "pool.sqlite"))
    exec(code, {"__name__": "howto"})
    assert capsys.readouterr().out == prints


HEAVY = ("torch", "transformers", "pyarrow", "sqlalchemy", "alembic", "fastapi", "uvicorn", "tokenizers", "zstandard")
CONSUMER = """
import sys
sys.modules.update(dict.fromkeys({without}))  # makes an import fail, as if the package were not installed
import numpy as np, stepwell
for lease in stepwell.Client({url!r}).leases("c", limit=2, wait=0):
    of = lease.arrays
    last = of.token_ids[of.row_offsets[-2] : of.row_offsets[-1]]
    print([last.tolist(), of.logprobs.tolist(), float(np.nanmean(of.trajectory_rewards))])
"""


def test_a_consumer_needs_none_of_the_heavy_packages(url, pool):
    pool.put(*ready_group("a"), *ready_group("b"))
    heavy = [
        "torch",
        "transformers",
        "pyarrow",
        "sqlalchemy",
        "alembic",
        "fastapi",
        "uvicorn",
        "tokenizers",
        "zstandard",
    ]
    code = CONSUMER.format(without=heavy, url=url)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(done.stdout) == [[1, 2, 7, 8], [-0.5, -0.25] * 4, 1.0]
    assert [own.acknowledged for own in pool.consumption()] == [2]
