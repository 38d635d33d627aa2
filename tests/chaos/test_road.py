"""The road: what it does to bytes is counted, seeded, and ends by itself."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tocsin.chaos.road import HOST, Road
from tocsin.chaos.toxin import FROM, TO, Toxin, directions_of, duration_of
from tocsin.core.errors import SpecError

WORDS = b"data: one token after the other\n\n" * 40
Peers = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def road() -> AsyncIterator[Road]:
    """A road to a service that says everything back."""
    heard: set[asyncio.StreamWriter] = set()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.add(writer)
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except ConnectionError:
            pass
        finally:
            writer.close()

    service = await asyncio.start_server(echo, HOST, 0)
    one = Road(HOST, service.sockets[0].getsockname()[1])
    await one.open()
    yield one
    await one.close()
    service.close()
    for writer in heard:
        writer.close()


@pytest.fixture
async def peers(road: Road) -> AsyncIterator[Peers]:
    """A client that has been answered once: its connection is there and in use."""
    reader, writer = await asyncio.open_connection(HOST, road.own_port)
    writer.write(b"hello")
    assert await reader.readexactly(5) == b"hello"
    yield reader, writer
    writer.close()


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


async def _in_time(answer: Awaitable[bytes]) -> bytes:
    return await asyncio.wait_for(answer, 10)


async def test_without_a_toxin_bytes_pass_and_are_counted(road: Road, peers: Peers) -> None:
    """Both directions, one connection, nothing late or held."""
    reader, writer = peers
    writer.write(WORDS)
    assert await _in_time(reader.readexactly(len(WORDS))) == WORDS
    await _until(lambda: road.reading.passed == 2 * (len(WORDS) + 5))
    assert (road.reading.connections, road.reading.late, road.reading.held) == (1, 0, 0)


async def test_late_bytes_arrive_whole_and_after_their_time(road: Road, peers: Peers) -> None:
    """Never before the latency is over, and counted as late."""
    reader, writer = peers
    loop = asyncio.get_running_loop()
    road.put(Toxin(directions=(FROM,), latency_ms=60.0), 30.0)
    began_s = loop.time()
    writer.write(b"later")
    assert await _in_time(reader.readexactly(5)) == b"later"
    assert loop.time() - began_s >= 0.06
    assert road.reading.late == 5


async def test_sliced_bytes_are_the_same_bytes_in_more_pieces(road: Road, peers: Peers) -> None:
    """A stream of events may be cut anywhere."""
    reader, writer = peers
    road.put(Toxin(directions=(FROM,), slice_bytes=7), 30.0)
    writer.write(WORDS)
    assert await _in_time(reader.readexactly(len(WORDS))) == WORDS
    assert road.reading.pieces > len(WORDS) // 7


async def test_a_narrow_road_takes_its_time_for_all_connections_together(
    road: Road, peers: Peers
) -> None:
    """1280 bytes at 12800 a second take 0.1 s at least."""
    reader, writer = peers
    loop = asyncio.get_running_loop()
    road.put(Toxin(directions=(FROM,), rate_bytes_s=12_800.0), 30.0)
    began_s = loop.time()
    writer.write(WORDS)
    await _in_time(reader.readexactly(len(WORDS)))
    assert loop.time() - began_s >= len(WORDS) / 12_800.0
    assert road.reading.late == len(WORDS)


async def test_what_a_partition_holds_goes_on_when_it_ends(road: Road, peers: Peers) -> None:
    """Bytes and new connections wait; none is lost, none is made up."""
    reader, writer = peers
    road.put(Toxin(blocked=True), 30.0)
    writer.write(b"held")
    await _until(lambda: road.reading.held == 4)
    late_reader, late_writer = await asyncio.open_connection(HOST, road.own_port)
    late_writer.write(b"new")
    await _until(lambda: road.reading.connections == 2)
    assert road.reading.passed == 10
    road.clear()
    assert await _in_time(reader.readexactly(4)) == b"held"
    assert await _in_time(late_reader.readexactly(3)) == b"new"
    late_writer.close()


async def test_a_toxin_ends_by_itself(road: Road, peers: Peers) -> None:
    """Nobody clears it: who put it there may be gone."""
    reader, writer = peers
    road.put(Toxin(blocked=True), 0.05)
    writer.write(b"held")
    assert await _in_time(reader.readexactly(4)) == b"held"
    assert road.toxin is None


async def test_one_direction_alone_may_be_blocked(road: Road, peers: Peers) -> None:
    """The service hears, and its answer is held."""
    _, writer = peers
    road.put(Toxin(directions=(FROM,), blocked=True), 30.0)
    passed = road.reading.passed
    writer.write(b"to")
    await _until(lambda: road.reading.held == 2)
    assert road.reading.passed == passed + 2


async def test_a_reset_reaches_the_client_as_one(road: Road, peers: Peers) -> None:
    """RST, not an end of stream: a client must not take the answer for whole."""
    reader, _ = peers
    assert road.cut(0.5, seed=1) == 1
    with pytest.raises(ConnectionResetError):
        await _in_time(reader.read(1))
    assert road.reading.resets == 1
    assert road.cut(1.0, seed=1) == 0


async def test_a_half_open_connection_is_silent_until_the_end(road: Road, peers: Peers) -> None:
    """No end of stream while it lasts; then a reset: what was asked for is lost."""
    reader, writer = peers
    road.put(Toxin(blocked=True), 30.0)
    assert road.cut(1.0, seed=1, half_open=True) == 1
    writer.write(b"anybody?")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.1)
    road.clear()
    with pytest.raises(ConnectionResetError):
        await _in_time(reader.read(1))


async def test_a_client_that_leaves_is_seen_to_leave(road: Road, peers: Peers) -> None:
    """A cancelled request must be cancelled at the service, too."""
    _, writer = peers
    writer.close()
    await _until(lambda: road.reading.open == 0)


async def test_a_service_feels_that_the_client_does_not_read() -> None:
    """It sends a token of 200 bytes after the other, and soon no more of them are taken."""
    sent = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.transport.set_write_buffer_limits(high=0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        while True:
            writer.write(b"x" * 200)
            await writer.drain()
            sent += 200
            await asyncio.sleep(0.002)

    service = await asyncio.start_server(talk, HOST, 0)
    one = Road(HOST, service.sockets[0].getsockname()[1])
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((HOST, await one.open()))
    try:
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.5)
        assert 0 < sent < 40_000, sent
    finally:
        client.close()
        await one.close()
        service.close()


async def test_a_name_with_several_addresses_is_tried_at_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`localhost` is `::1` first on many machines, and who listens on 127.0.0.1 is not there."""
    service = await asyncio.start_server(lambda reader, writer: writer.close(), HOST, 0)
    port = service.sockets[0].getsockname()[1]
    loop = asyncio.get_running_loop()
    found = [await loop.getaddrinfo(one, port, type=socket.SOCK_STREAM) for one in ("::1", HOST)]

    async def addresses(*_: object, **__: object) -> list[object]:
        return [*found[0], *found[1]]

    monkeypatch.setattr(loop, "getaddrinfo", addresses)
    one = Road("localhost", port)
    _, writer = await one._dial()
    assert writer.get_extra_info("peername")[0] == HOST
    writer.close()
    service.close()


async def test_nobody_at_the_other_end_resets_the_client() -> None:
    """As a refused connection: never silence."""
    service = await asyncio.start_server(lambda reader, writer: None, HOST, 0)
    port = service.sockets[0].getsockname()[1]
    service.close()
    await service.wait_closed()
    road = Road(HOST, port)
    await road.open()
    reader, writer = await asyncio.open_connection(HOST, road.own_port)
    with pytest.raises(ConnectionResetError):
        await _in_time(reader.read(1))
    writer.close()
    await road.close()


def test_the_same_seed_draws_the_same_delays_and_pieces() -> None:
    """By connection, direction and chunk; another seed draws others."""
    one, same, other = (
        Toxin(seed=seed, latency_ms=50.0, jitter_ms=20.0, slice_bytes=9) for seed in (3, 3, 4)
    )
    assert list(one.pieces(WORDS, 0, TO, 1)) == list(same.pieces(WORDS, 0, TO, 1))
    assert list(one.pieces(WORDS, 0, TO, 1)) != list(other.pieces(WORDS, 0, TO, 1))
    delays = {one.late_s(n, FROM, 0) for n in range(20)}
    assert delays == {same.late_s(n, FROM, 0) for n in range(20)}
    assert len(delays) == 20
    assert all(0.03 <= delay <= 0.07 for delay in delays)
    assert b"".join(one.pieces(WORDS, 5, FROM, 2)) == WORDS


@pytest.mark.parametrize("value", [0, -1, 31, "3", True, None])
def test_a_duration_is_a_sensible_number_of_seconds(value: object) -> None:
    """A slip of the pen must not cut clients off for an hour."""
    with pytest.raises(SpecError, match=r"from 0\.05 to 30"):
        duration_of("net.delay", value)


def test_an_unknown_direction_is_refused_with_the_known_ones() -> None:
    """In words."""
    with pytest.raises(SpecError, match="to, from, both"):
        directions_of("net.delay", "up")
