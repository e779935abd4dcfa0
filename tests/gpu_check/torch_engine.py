"""A load in place of an engine where there is PyTorch and no llama-server.

It answers OpenAI's chats as a stream: for each token one matrix after the other is multiplied and
attention reads its cache, as decode does; what it says is always the same. It needs Python's own
library and torch, and takes llama-server's options.
"""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

WIDTH, LAYERS = 4096, 32  # 1 GiB of weights
CHARS_PER_TOKEN = 4
BATCH_TOKENS = 512


class Load:
    """The weights, and room for the keys of one context."""

    def __init__(self, context_tokens: int) -> None:
        on = {"device": "cuda", "dtype": torch.float16}
        self.weights = [torch.randn(WIDTH, WIDTH, **on) for _ in range(LAYERS)]
        self.keys = torch.randn(context_tokens, WIDTH, **on)
        self.prompt = torch.randn(WIDTH, BATCH_TOKENS, **on)
        self.state = torch.randn(WIDTH, **on)
        self.slot = threading.Lock()

    def read(self, tokens: int) -> None:
        """Do the work of so many tokens of a prompt."""
        for _ in range(0, tokens, BATCH_TOKENS):
            for matrix in self.weights:
                matrix @ self.prompt
        torch.cuda.synchronize()

    def step(self, context_tokens: int) -> None:
        """Do the work of one token of an answer."""
        keys = self.keys[:context_tokens]
        for matrix in self.weights:
            scores = torch.softmax(keys @ (matrix @ self.state), 0)
            scores @ keys
        torch.cuda.synchronize()


class Handler(BaseHTTPRequestHandler):
    """Answers /health and chats; whoever comes while another is there waits."""

    load: Load

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = len(json.dumps(asked["messages"])) // CHARS_PER_TOKEN
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        with self.load.slot:
            self.load.read(prompt)
            for number in range(asked["max_tokens"]):
                self.load.step(prompt + number)
                self._send(choices=[{"index": 0, "delta": {"content": " sea"}}])
        self._send(choices=[{"index": 0, "delta": {}, "finish_reason": "length"}])
        used = {"prompt_tokens": prompt, "completion_tokens": asked["max_tokens"]}
        if (asked.get("stream_options") or {}).get("include_usage"):
            self._send(choices=[], usage={**used, "total_tokens": sum(used.values())})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called
        return

    def _send(self, **chunk: Any) -> None:
        chunk = {"id": "x", "object": "chat.completion.chunk", "model": "load", **chunk}
        self.wfile.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--ctx-size", type=int)
    options, _ = parser.parse_known_args()
    Handler.load = Load(options.ctx_size)
    ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
