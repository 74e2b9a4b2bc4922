"""A store that speaks S3 on loopback (moto), and a proxy before it that does what a test tells it to.

Owns: the two, and what can go wrong between them. Must not know: archives.
"""

from __future__ import annotations

import dataclasses
import http.client
import http.server
import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable

REGION = "us-east-1"
START_SECONDS_MAX = 30
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": REGION}
"""What the server finds in its environment; moto takes any."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Store:
    """moto in a process of its own: objects are in its memory, and gone with it."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.poll() is None, "moto ended"
                assert time.monotonic() < deadline, "moto does not answer"
                time.sleep(0.05)

    def make_bucket(self, name: str) -> None:
        answer = forward(self.port, Request("PUT", f"/{name}", {"Content-Length": "0"}, b""))
        assert answer.status == 200, answer.body

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@dataclasses.dataclass
class Request:
    """What came to the proxy."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def is_put_of(self, what: str) -> bool:
        return self.method == "PUT" and f"/{what}/" in self.path

    def is_get_of(self, what: str) -> bool:
        return self.method == "GET" and f"/{what}/" in self.path


@dataclasses.dataclass
class Answer:
    """What goes back. `sent`: so many bytes of the body alone, then the connection ends."""

    status: int
    headers: dict[str, str]
    body: bytes
    sent: int | None = None


def failure(status: int, code: str) -> Answer:
    """An answer as S3's, of something that did not work."""
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()
    return Answer(status, {"Content-Type": "application/xml"}, body)


def forward(port: int, request: Request) -> Answer:
    """Asks the store itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(request.method, request.path, request.body, request.headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    kept = {name: value for name, value in answer.getheaders() if name.lower() not in ("connection", "transfer-encoding")}
    return Answer(answer.status, kept, body)


Harm = Callable[[Request, Callable[[], Answer]], Answer | None]
"""Given a request, and what asks the store: what is answered; None: the connection ends without an answer."""


class Proxy:
    """Stands before the store. `harm` decides about every request; `die` ends all connections and takes none."""

    def __init__(self, store: Store) -> None:
        self.store, self.port = store, free_port()
        self.harm: Harm | None = None
        self.seen: list[tuple[str, str]] = []
        """Method and path of every request since `tell`."""
        self.connections: set[socket.socket] = set()
        self.server: _Listener | None = None
        self.revive()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def tell(self, harm: Harm | None) -> None:
        """What to do from now on; None: nothing but what is asked."""
        self.seen, self.harm = [], harm

    def die(self) -> None:
        """As a store whose process is killed: connections are reset, new ones are refused."""
        server, self.server = self.server, None
        if server is None:
            return
        server.socket.close()
        for connection in list(self.connections):
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended already
        threading.Thread(target=server.shutdown, daemon=True).start()

    def revive(self) -> None:
        """It is back, with all that it had."""
        if self.server is None:
            self.server = _Listener(("127.0.0.1", self.port), _Handler)
            self.server.proxy = self
            threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def is_dead(self) -> bool:
        return self.server is None


class _Listener(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads, allow_reuse_address, request_queue_size = True, True, 64
    proxy: Proxy

    def handle_error(self, request, client_address) -> None:
        """A connection that ends early is what tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.server.proxy.connections.add(self.connection)

    def finish(self) -> None:
        self.server.proxy.connections.discard(self.connection)
        super().finish()

    def log_message(self, *_: object) -> None:
        pass

    def answer(self) -> None:
        proxy = self.server.proxy
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, dict(self.headers), body)
        proxy.seen.append((request.method, request.path))

        def ask() -> Answer:
            return forward(proxy.store.port, request)

        answer = proxy.harm(request, ask) if proxy.harm else ask()
        if answer is None or proxy.is_dead():
            self.close_connection = True
            return
        self.send_response_only(answer.status)
        headers = {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
        # Of what HEAD tells, the length is the object's.
        length = answer.headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(answer.body))
        for name, value in {**headers, "Content-Length": length}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body if answer.sent is None else answer.body[: answer.sent])
        if answer.sent is not None:
            self.close_connection = True

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer


def in_environment(monkeypatch) -> None:
    """The credentials are in the environment of what is started."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    for name in [name for name in os.environ if name.startswith("AWS_") and name not in CREDENTIALS]:
        monkeypatch.delenv(name)
