"""A llama-server of any version of PyPI's xllamacpp, which tells the number of its build.

`PYTHON numbered_engine.py --model FILE --port PORT ...`: run by the interpreter that has the
version. Those builds say "b0-unknown" of themselves; the last part of the package's version is the
number. A request goes on to the engine's own port, and its reply comes back whole.
"""

import argparse
import contextlib
import http.client
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from urllib.parse import urlsplit

import xllamacpp

BUILD = f"b{version('xllamacpp').rpartition('.')[2]}"


class Relay(BaseHTTPRequestHandler):
    """Answers with what the engine answers, its build told."""

    protocol_version = "HTTP/1.1"
    engine = ""

    def do_GET(self) -> None:
        self.relay()

    def do_POST(self) -> None:
        self.relay()

    def relay(self) -> None:
        """Ask the engine, and pass its reply on."""
        asked = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        engine = http.client.HTTPConnection(self.engine, timeout=600)
        engine.request(self.command, self.path, asked, {"Content-Type": "application/json"})
        reply = engine.getresponse()
        body = reply.read().replace(b"b0-unknown", BUILD.encode())
        engine.close()
        with contextlib.suppress(ConnectionError):  # who asked did not wait
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.headers.get("Content-Type", "text/plain"))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Load the model and serve until somebody ends the process."""
    parser = argparse.ArgumentParser()
    for option in ("--port", "--threads", "--ctx-size", "--parallel", "--n-gpu-layers"):
        parser.add_argument(option, type=int, required=True)
    parser.add_argument("--model", required=True)
    options = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.port = 0
    params.n_ctx, params.n_parallel = options.ctx_size, options.parallel
    params.n_gpu_layers = options.n_gpu_layers
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.endpoint_slots = params.endpoint_metrics = True
    params.verbosity = 1
    server = xllamacpp.Server(params)
    Relay.engine = urlsplit(server.listening_address).netloc
    try:
        ThreadingHTTPServer(("127.0.0.1", options.port), Relay).serve_forever()
    finally:
        os._exit(0)  # Python's own end waits for the engine's threads


if __name__ == "__main__":
    main()
