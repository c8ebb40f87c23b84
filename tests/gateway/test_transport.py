"""Streams and those who do not read them: when a client counts as gone."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from stepwell.gateway import transport
from stepwell.gateway.transport import EventStream

pause = asyncio.sleep


async def settled() -> None:
    for _ in range(10):
        await pause(0)


class Stage:
    """A stream whose beats, events and reader a test moves by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats = asyncio.Semaphore(0)
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.reads = asyncio.Semaphore(0)
        self.read: list[bytes] = []
        self.closed = False
        monkeypatch.setattr(transport.asyncio, "sleep", lambda _seconds: self.beats.acquire())
        self.call = asyncio.create_task(EventStream(self._written(), {})({}, self._receive, self._send))

    async def _written(self) -> AsyncGenerator[bytes, None]:
        try:
            while (event := await self.events.get()) is not None:
                yield event
        finally:
            self.closed = True

    async def _receive(self) -> dict:
        return await asyncio.Future()

    async def _send(self, message: dict) -> None:
        if message["type"] == "http.response.body":
            await self.reads.acquire()
            self.read.append(message["body"])

    async def beat(self) -> None:
        self.beats.release()
        await settled()

    async def take(self) -> None:
        self.reads.release()
        await settled()


@pytest.fixture
async def stage(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Stage, None]:
    made = Stage(monkeypatch)
    await settled()
    yield made
    made.call.cancel()


async def test_an_event_that_nobody_takes_for_two_beats_ends_the_stream_and_closes_its_source(stage: Stage) -> None:
    stage.events.put_nowait(b"one")
    await settled()
    for _ in range(2):  # between the first beat and the second, one whole beat has passed
        await stage.beat()
        assert (stage.call.done(), stage.closed) == (False, False)
    await stage.beat()
    assert (stage.call.done(), stage.closed, stage.read) == (True, True, [])
    await stage.call


async def test_a_reader_that_takes_an_event_at_least_every_other_beat_is_there(stage: Stage) -> None:
    for number in range(6):
        stage.events.put_nowait(b"%d" % number)
    for _ in range(6):
        await stage.beat()
        await stage.beat()
        await stage.take()
    assert not stage.call.done()
    stage.events.put_nowait(None)
    await stage.take()
    await stage.call
    assert stage.read == [b"0", b"1", b"2", b"3", b"4", b"5", b""]


async def test_a_quiet_stream_sends_a_ping_for_each_whole_beat_of_silence(stage: Stage) -> None:
    stage.reads.release()
    stage.events.put_nowait(b"one")
    for pings in range(3):
        await stage.beat()
        await stage.take()
        assert stage.read == [b"one", *[b": ping\n\n"] * pings]
    assert not stage.call.done()


async def test_a_ping_that_nobody_takes_ends_the_stream_as_well() -> None:
    async def silent() -> AsyncGenerator[bytes, None]:
        await asyncio.Future()
        yield b""

    async def send(message: dict) -> None:
        if message["type"] == "http.response.body":
            await asyncio.Future()

    stream = EventStream(silent(), {}, ping_seconds=0.01)
    await asyncio.wait_for(stream({}, lambda: asyncio.Future(), send), 20)
