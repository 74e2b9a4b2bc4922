"""A proxy that gives each request to the next of its servers, whatever it knows of them. Must not know: engines, pools."""

from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request

ANSWER_SECONDS_MAX = 120


class RoundRobin:
    """Requests go to one server after another; one that cannot be reached is left out, and the next one is asked."""

    def __init__(self, urls: list[str]) -> None:
        self.urls, self._turn, self._lock = urls, 0, threading.Lock()
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                served, status, answer = proxy.ask(self.path, body)
                self.send_response(status)
                for name, value in (("Content-Length", str(len(answer))), ("X-Served-By", served)):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def ask(self, path: str, body: bytes) -> tuple[str, int, bytes]:
        """Who answered, the status, the answer."""
        for _ in self.urls:
            with self._lock:
                url = self.urls[self._turn % len(self.urls)]
                self._turn += 1
            request = urllib.request.Request(url + path, body, {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX) as reply:
                    return url, reply.status, reply.read()
            except urllib.error.HTTPError as error:
                return url, error.code, error.read()
            except OSError:
                continue
        return "", 502, b"nobody answers"

    def end(self) -> None:
        """No more requests."""
        self._server.shutdown()
        self._server.server_close()
