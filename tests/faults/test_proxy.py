"""The proxy of the chaos runs, before a plain server that tells back what it is told."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.proxy import Mode, Proxy
from tests.waiting import wait_until


class Echo(socketserver.BaseRequestHandler):
    """Tells each line back, and keeps what it got."""

    def handle(self) -> None:
        assert isinstance(self.server, Server)
        try:
            while data := self.request.recv(1 << 16):
                self.server.got.append(data)
                self.request.sendall(data)
            self.server.ended.append("end")
        except OSError:
            self.server.ended.append("reset")


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended: list[str] = []
        super().__init__(("127.0.0.1", 0), Echo)

    @property
    def heard(self) -> bytes:
        return b"".join(self.got)


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    host, port = server.server_address[:2]
    assert isinstance(host, str)
    with Proxy((host, port)) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with connect(proxy) as client:
        assert ask(client, b"hello") == b"hello"
        yield client


def connect(proxy: Proxy) -> socket.socket:
    client = socket.create_connection(proxy.address, timeout=20)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def ask(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size and (piece := client.recv(size - len(found))):
        found += piece
    return found


def is_silent(client: socket.socket) -> bool:
    """Nothing comes, and it is not said to be over. No answer can be proved only by waiting a little."""
    client.settimeout(0.2)
    try:
        return client.recv(1) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(20)


def test_it_passes_on_much_both_ways(proxy: Proxy, client: socket.socket, server: Server):
    data = bytes(range(256)) * 8_000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert receive(client, len(data)) == data
    sender.join()
    assert server.heard == b"hello" + data
    assert proxy.seen.to_server == proxy.seen.to_client == 5 + len(data)


def test_an_end_is_an_end(proxy: Proxy, client: socket.socket, server: Server):
    client.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    wait_until(lambda: server.ended == ["end"], "the server was told")
    wait_until(lambda: proxy.open == 0, "nothing is left open")


def test_a_cut_resets_both_sides(proxy: Proxy, client: socket.socket, server: Server):
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    wait_until(lambda: server.ended == ["reset"], "the server was reset too")
    with connect(proxy) as again:
        assert ask(again, b"again") == b"again"


def test_a_close_is_orderly(proxy: Proxy, client: socket.socket, server: Server):
    assert proxy.close() == 1
    assert client.recv(1) == b""
    wait_until(lambda: server.ended == ["end"], "the server saw an end")


def test_new_connections_are_refused_and_open_ones_go_on(proxy: Proxy, client: socket.socket):
    proxy.set(Mode.REFUSE)
    with pytest.raises(ConnectionResetError), connect(proxy) as refused:
        refused.recv(1)
    assert ask(client, b"still") == b"still"
    proxy.set(Mode.PASS)
    with connect(proxy) as again:
        assert ask(again, b"again") == b"again"
    assert proxy.seen.refused == 1


def test_delay_holds_each_piece_back(proxy: Proxy, client: socket.socket):
    proxy.set(Mode.DELAY, seconds=0.15)
    began = time.monotonic()
    assert ask(client, b"slow") == b"slow"
    assert time.monotonic() - began >= 0.3  # there and back: a lower bound holds on any machine
    proxy.set(Mode.PASS)
    assert ask(client, b"quick") == b"quick"


def test_requests_are_swallowed_and_nobody_is_told(proxy: Proxy, client: socket.socket, server: Server):
    proxy.set(Mode.SWALLOW_REQUESTS)
    client.sendall(b"into the void")
    wait_until(lambda: proxy.seen.swallowed == 13, "it is swallowed")
    assert is_silent(client)
    assert server.heard == b"hello"
    assert server.ended == []
    proxy.set(Mode.PASS)
    assert ask(client, b"back") == b"back"


def test_replies_are_swallowed_after_the_server_acted(proxy: Proxy, client: socket.socket, server: Server):
    proxy.set(Mode.SWALLOW_REPLIES)
    client.sendall(b"act")
    wait_until(lambda: proxy.seen.swallowed == 3, "the answer is swallowed")
    assert server.heard == b"helloact"
    assert is_silent(client)
    proxy.set(Mode.PASS)
    assert ask(client, b"back") == b"back"


def test_a_reply_is_lost_once_after_the_server_acted(proxy: Proxy, client: socket.socket, server: Server):
    proxy.set(Mode.LOSE_REPLY)
    client.sendall(b"commit")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert server.heard == b"hellocommit"
    with connect(proxy) as again:
        assert ask(again, b"again") == b"again"
    assert proxy.seen.lost_replies == 1


def test_a_lost_reply_waits_for_a_request(proxy: Proxy, client: socket.socket):
    """One that is open and silent is not hit; who asks is."""
    proxy.set(Mode.LOSE_REPLY, times=2)
    with connect(proxy) as other:
        other.sendall(b"one")
        with pytest.raises(ConnectionResetError):
            other.recv(1)
    client.sendall(b"two")
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert proxy.seen.lost_replies == 2


def test_an_answer_is_cut_off_after_some_bytes(proxy: Proxy, client: socket.socket, server: Server):
    proxy.set(Mode.TRUNCATE, bytes=4)
    client.sendall(b"truncated")
    assert receive(client, 100) == b"trun"
    assert server.heard == b"hellotruncated"
    with connect(proxy) as again:
        assert ask(again, b"again") == b"again"
    assert proxy.seen.truncated == 1


def test_a_server_that_is_gone_resets(server: Server):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = unused.getsockname()
    with Proxy(nobody) as proxy, pytest.raises(ConnectionResetError), connect(proxy) as client:
        client.recv(1)


def test_the_end_of_the_proxy_ends_its_connections(server: Server):
    host, port = server.server_address[:2]
    assert isinstance(host, str)
    with Proxy((host, port)) as proxy:
        client = connect(proxy)
        assert ask(client, b"hello") == b"hello"
    with client, pytest.raises(ConnectionResetError):
        client.recv(1)


def test_open_lines_die_with_their_next_answer(server: Server, proxy: Proxy, client: socket.socket):
    """The server has acted; what either side says after that is lost, and neither is told. New lines are good."""
    assert proxy.deafen() == 1
    client.sendall(b"one")
    wait_until(lambda: b"one" in server.heard, "the server heard it")
    wait_until(lambda: proxy.seen.swallowed == 3, "its answer is lost")
    client.sendall(b"two")
    wait_until(lambda: proxy.seen.swallowed == 6, "and what came after it")
    client.close()
    with connect(proxy) as other:
        assert ask(other, b"three") == b"three"
    assert b"two" not in server.heard
    wait_until(lambda: server.ended == ["end"], "the other line has ended, and only that")


def test_only_an_answer_that_holds_something_is_lost(server: Server, proxy: Proxy, client: socket.socket):
    proxy.set(Mode.LOSE_REPLY, holding=b"COMMIT")
    assert ask(client, b"BEGIN") == b"BEGIN"
    client.sendall(b"COMMIT")
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert proxy.seen.lost_replies == 1


def test_a_server_behind_a_socket_in_the_file_system(tmp_path: Path):
    path = str(tmp_path / "socket")
    with socketserver.ThreadingUnixStreamServer(path, Plain) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        with Proxy(path) as proxy, connect(proxy) as client:
            assert ask(client, b"hello") == b"hello"
        server.shutdown()
        thread.join()


class Plain(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.sendall(self.request.recv(100))
