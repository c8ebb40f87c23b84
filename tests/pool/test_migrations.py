import json
import logging
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
import sqlalchemy as sa
import zstandard
from alembic.autogenerate import compare_metadata
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from stepwell.errors import PoolError
from stepwell.pool import migrations, schema
from stepwell.pool.lease import LeaseSpec
from stepwell.pool.store import open_pool
from stepwell.types import Annotation, GroupInfo, Record, Sampling, Step, TrajectoryInfo, UpdateInfo
from tests.pool.children import lines_of, spawn

SCRIPTS = ScriptDirectory(str(Path(migrations.__file__).parent))
STRICT = {
    "compare_type": True,
    "include_object": lambda _, name, kind, *__: (kind, name) != ("table", "alembic_version"),
}
FIRST_TABLES = ["meta", "groups", "trajectories", "steps", "annotations", "updates", "leases", "deliveries"]


def at_sqlite(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("tmp_path") / "pool.sqlite")


def at_postgresql(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue("database")
    return url


@pytest.fixture(params=[at_postgresql, at_sqlite], ids=["postgresql", "sqlite"])
def empty(request: pytest.FixtureRequest) -> str:
    """Where an empty database is, or will be once it is opened."""
    location: str = request.param(request)
    return location


@pytest.fixture
def connection(empty: str) -> Iterator[sa.Connection]:
    url = empty.replace("postgresql:", "postgresql+psycopg:") if "://" in empty else f"sqlite:///{empty}"
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection


def make_first(connection: sa.Connection) -> None:
    """Make the tables of revision 0001 as they were before there was Alembic, which left no note of it."""
    with Operations.context(MigrationContext.configure(connection)):
        SCRIPTS.get_revision("0001").module.upgrade()


def insert(connection: sa.Connection, table: str, **values: object) -> None:
    names = ", ".join(values)
    connection.execute(sa.text(f"INSERT INTO {table} ({names}) VALUES (:{', :'.join(values)})"), values)


def packed(values: object, kind: str = "<i4") -> bytes:
    return zstandard.compress(values.encode() if isinstance(values, str) else np.array(values, kind).tobytes())


STEPS = [
    Step(
        id=f"s{index}",
        trajectory_id="t",
        index=index,
        prompt_ids=prompt,
        response_ids=[7, 8],
        logprobs=[-0.5, -0.1],
        policy_version_min=3,
        policy_version_max=4,
        sampling=Sampling(temperature=0.7, seed=11, constrained=True),
        model="m",
        dialect="chat",
        request=request,
        response='{"role": "assistant"}',
        created_at=100.0 + index,
        latency=0.25,
    )
    for index, (prompt, request) in enumerate([([1, 2, 3], '["Ω"]'), ([1, 2, 3, 7, 8, 9], '["Ω", "b"]')])
]
RECORDS: list[Record] = [
    GroupInfo(id="g", task_id="task", channel="c", size=1, created_at=1.0),
    TrajectoryInfo(id="t", group_id="g", task_id="task", agent="a", source="rollout", created_at=2.0),
    *STEPS,
    Annotation(
        id="r", target="step", target_id="s0", kind="reward", name="answer", value=0.5, text="why", created_at=3.0
    ),
    Annotation(id="e", target="trajectory", target_id="t", kind="end", name="terminated", created_at=4.0),
    TrajectoryInfo(id="u", created_at=5.0),
    UpdateInfo(id="v", run="run", policy_version=4, metrics=(("loss", 0.5),), created_at=6.0),
]
TIMES = dict(zip(["g", "t", "s0", "s1", "r", "e", "u", "v"], range(1, 9), strict=True))


def fill_first(connection: sa.Connection) -> None:
    """RECORDS as revision 0001 kept them, and a lease of the group by `one`."""
    log = {name: {"cursor": cursor, "id": name, "digest": b"old"} for name, cursor in TIMES.items()}
    insert(connection, "groups", **log["g"], created_at=1.0, task_id="task", channel="c", size=1, ready_cursor=6)
    owner = {"steps": 2, "prompt_tokens": 9, "response_tokens": 4, "complete_cursor": 6, "status": "terminated"}
    who = {"task_id": "task", "agent": "a", "source": "rollout"}
    insert(connection, "trajectories", **log["t"], created_at=2.0, group_cursor=1, **who, **owner)
    for step in STEPS:
        own = slice(5 * step.index, None)  # of the second, five ids are those of the first
        base = {"base_cursor": 3, "prompt_shared": 5, "request_shared": 5} if step.index else {}
        insert(
            connection,
            "steps",
            **log[step.id],
            created_at=step.created_at,
            trajectory_cursor=2,
            position=step.index,
            **{"base_cursor": None, "prompt_shared": 0, "request_shared": 0, **base},
            prompt_tail=packed(step.prompt_ids[own]),
            response_ids=packed([7, 8]),
            logprobs=packed([-0.5, -0.1], "<f4"),
            request_tail=zstandard.compress(step.request.encode()[own]),
            response=packed(step.response),
            policy_version_min=3,
            policy_version_max=4,
            finish_reason=step.finish_reason,
            token_source=step.token_source,
            **{"temperature": 0.7, "top_p": 1.0, "top_k": 0, "seed": 11, "constrained": 1},
            max_tokens=step.sampling.max_tokens,
            **{"model": "m", "parent_id": "", "fork": "", "side": "", "prefill": 0, "dialect": "chat"},
            latency=0.25,
        )
    about = {"trajectory_cursor": 2, "text": "why"}
    insert(
        connection,
        "annotations",
        **log["r"],
        **about,
        **{"created_at": 3.0, "step_cursor": 3, "kind": "reward", "name": "answer", "value": 0.5},
    )
    about["text"] = ""
    insert(connection, "annotations", **log["e"], **about, created_at=4.0, kind="end", name="terminated")
    nothing = {"task_id": "", "agent": "", "source": "gateway", "status": "open"}
    counts = {"steps": 0, "prompt_tokens": 0, "response_tokens": 0}
    insert(connection, "trajectories", **log["u"], created_at=5.0, **nothing, **counts)
    metrics = {"run": "run", "policy_version": 4, "metrics": json.dumps([["loss", 0.5]])}
    insert(connection, "updates", **log["v"], created_at=6.0, **metrics)
    insert(connection, "leases", id="l", consumer="one", size=1, state="held", expires_at=2e9)
    insert(connection, "deliveries", consumer="one", group_cursor=1, lease_id="l", free_at=2e9)
    connection.execute(sa.text("UPDATE meta SET value = 8 WHERE name = 'cursor'"))


def test_a_pool_of_the_first_revision_is_upgraded_with_all_that_it_holds(
    connection: sa.Connection, empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    make_first(connection)
    fill_first(connection)
    connection.commit()
    with caplog.at_level(logging.WARNING):
        pool = open_pool(empty)
    assert "upgrading its schema from revision 0001 to" in caplog.text
    trajectory = pool.trajectory("t")
    assert (pool.group("g").info, trajectory.info, pool.trajectory("u").info) == (RECORDS[0], RECORDS[1], RECORDS[6])
    assert trajectory.steps == tuple(STEPS)
    assert [pool.step(step.id) for step in STEPS] == STEPS
    assert (trajectory.status, trajectory.reward, trajectory.step_rewards) == ("terminated", 0.5, (0.5, 0.0))
    assert pool.updates() == [RECORDS[7]]
    again = pool.append(RECORDS).result(60)
    assert [(receipt.cursor, receipt.duplicate) for receipt in again] == [(cursor, True) for cursor in TIMES.values()]
    assert pool.lease(LeaseSpec(consumer="one", limit=1)).groups == ()
    pool.acknowledge("l")
    assert pool.lease(LeaseSpec(consumer="two", limit=1)).groups == (pool.group("g"),)
    pool.close()


def test_the_migrations_end_in_the_tables_of_the_schema(connection: sa.Connection, empty: str) -> None:
    make_first(connection)
    connection.commit()
    open_pool(empty).close()
    assert compare_metadata(MigrationContext.configure(connection, opts=STRICT), schema.metadata) == []


def test_a_new_pool_is_what_the_schema_says(connection: sa.Connection, empty: str) -> None:
    open_pool(empty).close()
    assert compare_metadata(MigrationContext.configure(connection, opts=STRICT), schema.metadata) == []


def test_the_list_of_revisions_is_that_of_the_files() -> None:
    assert tuple(script.revision for script in SCRIPTS.walk_revisions())[::-1] == migrations.REVISIONS


def test_a_pool_of_each_revision_since_the_tables_were_written_anew_ends_in_those_of_the_schema(
    connection: sa.Connection, empty: str
) -> None:
    open_pool(empty).close()
    connection.execute(sa.text("DROP TABLE credits"))
    connection.execute(sa.text("DROP INDEX ix_steps_by_time"))
    connection.execute(sa.text("UPDATE alembic_version SET version_num = '0002'"))
    connection.commit()
    open_pool(empty).close()
    assert compare_metadata(MigrationContext.configure(connection, opts=STRICT), schema.metadata) == []


def test_an_old_pool_is_not_upgraded_by_who_only_reads(connection: sa.Connection, empty: str) -> None:
    make_first(connection)
    connection.commit()
    with pytest.raises(PoolError, match=r"schema is old \(0001.*open it once for writing"):
        open_pool(empty, read_only=True)
    assert not sa.inspect(connection).has_table("alembic_version")


def test_an_upgrade_that_fails_leaves_the_pool_as_it_was(connection: sa.Connection, empty: str) -> None:
    make_first(connection)
    fill_first(connection)
    connection.execute(sa.text("UPDATE steps SET logprobs = response_ids WHERE id = 's1'"))
    connection.execute(sa.text("UPDATE steps SET prompt_tail = request_tail WHERE id = 's1'"))
    connection.commit()
    with pytest.raises(PoolError, match="step s1 is damaged"):
        open_pool(empty)
    assert connection.execute(sa.text("SELECT count(*) FROM deliveries")).scalar_one() == 1
    assert sorted(sa.inspect(connection).get_table_names()) == sorted(FIRST_TABLES)


def test_a_pool_of_a_newer_stepwell_is_refused(connection: sa.Connection, empty: str) -> None:
    open_pool(empty).close()
    connection.execute(sa.text("UPDATE alembic_version SET version_num = '9999'"))
    connection.commit()
    for read_only in (False, True):
        with pytest.raises(PoolError, match=r"schema is 9999.*upgrade Stepwell"):
            open_pool(empty, read_only=read_only)


def test_two_processes_that_open_an_empty_database_at_once_make_one_pool(empty: str) -> None:
    children = [spawn("append_some", empty, name, 3) for name in ("one", "two", "three")]
    for child in children:
        lines_of(child)
    pool = open_pool(empty, read_only=True)
    assert pool.stats().steps == 9
    pool.close()


def test_an_older_stepwell_refuses_an_upgraded_pool(tmp_path: Path) -> None:
    """It looks for a `schema_version` of its own in `meta`."""
    path = tmp_path / "pool.sqlite"
    open_pool(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() is None
    connection.close()


def test_comments_of_an_upgraded_postgresql_pool_are_those_of_the_schema(database: str) -> None:
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.NullPool)
    with engine.begin() as connection:
        make_first(connection)
    open_pool(database).close()
    with psycopg.connect(database) as connection:
        kept = connection.execute("SELECT attstorage FROM pg_attribute WHERE attname = 'logprobs'").fetchall()
    assert kept == [("e",)]
    with engine.connect() as own:
        comments = {column["name"]: column["comment"] for column in sa.inspect(own).get_columns("steps")}
    assert comments == {column.name: column.comment for column in schema.steps.c}
