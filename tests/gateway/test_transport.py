"""Streams and those who do not read them: when a client counts as gone."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from stepwell.gateway import transport
from stepwell.gateway.transport import ClientGone, EventStream, unless_gone

pause = asyncio.sleep


async def settled() -> None:
    for _ in range(10):
        await pause(0)


class Plain:
    """What is written is bytes already."""

    def write(self, item: bytes) -> bytes:
        return item

    def over(self) -> None:
        pass

    def left(self) -> None:
        pass

    def failed(self, error: Exception) -> bytes:
        return f"failed: {error}".encode()


class Stage:
    """A stream whose beats, events and reader a test moves by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.beats = asyncio.Semaphore(0)
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.reads = asyncio.Semaphore(0)
        self.read: list[bytes] = []
        self.closed = False
        monkeypatch.setattr(transport.asyncio, "sleep", lambda _seconds: self.beats.acquire())
        self.call = asyncio.create_task(EventStream(self._written(), Plain(), {})({}, self._receive, self._send))

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

    stream = EventStream(silent(), Plain(), {}, ping_seconds=0.01)
    await asyncio.wait_for(stream({}, lambda: asyncio.Future(), send), 20)


class Work:
    """Never done; takes two rounds of the loop to clean up."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cleaned = False

    async def do(self) -> None:
        try:
            self.begun.set()
            await asyncio.Future()
        finally:
            await pause(0)
            await pause(0)
            self.cleaned = True


async def test_work_for_a_client_that_left_is_cleaned_up_before_that_is_told() -> None:
    work = Work()

    async def receive() -> dict:
        await work.begun.wait()
        return {"type": "http.disconnect"}

    with pytest.raises(ClientGone):
        await unless_gone(receive, work.do())
    assert work.cleaned


async def test_a_caller_that_is_cancelled_is_cancelled_even_if_the_client_leaves_as_well() -> None:
    work = Work()
    leaves = asyncio.Event()

    async def receive() -> dict:
        await leaves.wait()
        return {"type": "http.disconnect"}

    caller = asyncio.create_task(unless_gone(receive, work.do()))
    await work.begun.wait()
    leaves.set()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert work.cleaned


async def test_a_stream_whose_source_fails_ends_with_what_is_written_of_that() -> None:
    async def failing() -> AsyncGenerator[bytes, None]:
        yield b"one"
        raise ValueError("no more")

    sent: list[dict] = []

    async def send(message: dict) -> None:
        sent.append(message)

    await EventStream(failing(), Plain(), {})({}, lambda: asyncio.Future(), send)
    assert [(message["body"], message["more_body"]) for message in sent[1:]] == [
        (b"one", True),
        (b"failed: no more", False),
    ]
