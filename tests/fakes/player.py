"""An engine that plays recorded replies, for clients that are libraries: HTTP in a thread."""

import contextlib
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import orjson

from fakes.wire import JSON, reply

Call = tuple[str, bool]
"""A path, and whether it was asked for as a stream."""


@contextlib.contextmanager
def playing(looks: Mapping[str, bytes], replies: Mapping[Call, bytes]) -> Iterator[str]:
    """Answer GETs with `looks` and POSTs with `replies`, raw HTTP as it was on the wire."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(looks.get(self.path.partition("?")[0]))

        def do_POST(self) -> None:
            said = orjson.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._say(replies.get((self.path.partition("?")[0], bool(said.get("stream")))))

        def _say(self, raw: bytes | None) -> None:
            self.wfile.write(raw or reply(b"{}", JSON, status="404 Not Found"))
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
