"""Limits, quotas, pause and drain."""

import asyncio

import pytest

from stepwell.errors import RateLimited, Unavailable
from stepwell.gateway import gate as module
from stepwell.gateway.gate import Gate
from stepwell.gateway.keys import Principal

ANYBODY = Principal(name="", scopes=frozenset())


async def through(gate: Gate, principal: Principal = ANYBODY) -> None:
    async with gate.passing(principal):
        pass


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_calls_over_the_limit_are_refused_until_one_ends():
    gate = Gate(2, 1.0)
    async with gate.passing(ANYBODY):
        async with gate.passing(ANYBODY):
            with pytest.raises(RateLimited) as refused:
                await through(gate)
            assert (gate.running, refused.value.retry_after) == (2, 1.0)
        await through(gate)
    assert gate.running == 0


async def test_a_call_that_fails_counts_as_ended():
    gate = Gate(1, 1.0)
    for _ in range(3):
        with pytest.raises(KeyError):
            async with gate.passing(ANYBODY):
                raise KeyError
    assert gate.running == 0


async def test_calls_wait_out_a_pause_and_then_all_go():
    gate = Gate(8, 60.0)
    gate.pause()
    waiting = [asyncio.create_task(through(gate)) for _ in range(3)]
    await settled()
    assert (gate.waiting, gate.running, [task.done() for task in waiting]) == (3, 0, [False] * 3)
    gate.resume()
    await asyncio.gather(*waiting)
    assert (gate.waiting, gate.state) == (0, "open")


async def test_a_pause_that_lasts_too_long_refuses():
    gate = Gate(8, 0.01)
    gate.pause()
    with pytest.raises(Unavailable) as refused:
        await through(gate)
    assert (refused.value.retry_after, gate.waiting) == (5.0, 0)


async def test_a_caller_that_leaves_does_not_wait_on():
    gate = Gate(8, 60.0)
    gate.pause()
    task = asyncio.create_task(through(gate))
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (gate.waiting, gate.running) == (0, 0)


async def test_a_drain_lets_calls_end_and_refuses_new_ones():
    gate = Gate(8, 60.0)
    go = asyncio.Event()

    async def call() -> None:
        async with gate.passing(ANYBODY):
            await go.wait()

    running = asyncio.create_task(call())
    await settled()
    assert await gate.drain(0.01) is False
    draining = asyncio.create_task(gate.drain(60))
    await settled()
    with pytest.raises(Unavailable):
        await through(gate)
    go.set()
    assert await draining is True
    await running
    gate.resume()
    await through(gate)


async def test_a_drain_refuses_those_that_wait_for_the_end_of_a_pause():
    gate = Gate(8, 60.0)
    gate.pause()
    waiting = asyncio.create_task(through(gate))
    await settled()
    assert await gate.drain(1) is True
    with pytest.raises(Unavailable):
        await asyncio.wait_for(waiting, 5)


async def test_a_quota_is_a_minutes_worth_of_calls_that_fills_up_steadily(monkeypatch):
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    gate, mine = Gate(8, 1.0), Principal(name="me", key_id="1", scopes=frozenset(), calls_per_minute=6)
    for _ in range(6):
        await through(gate, mine)
    with pytest.raises(RateLimited) as refused:
        await through(gate, mine)
    assert refused.value.retry_after == pytest.approx(10)
    await through(gate, Principal(name="you", key_id="2", scopes=frozenset(), calls_per_minute=6))
    now += 10
    await through(gate, mine)
    with pytest.raises(RateLimited):
        await through(gate, mine)
