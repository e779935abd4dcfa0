"""Connections from clients: aiohttp's own, made by its server, one thing mended."""

from typing import Any

from aiohttp import web


class ClientConnection(web.RequestHandler):
    """One connection from a client, which takes its requests apart."""

    __slots__ = ("_was_paused",)

    def __init__(self, server: web.Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._was_paused = False

    def pause_reading(self) -> None:
        """Pause, and know it from now on: see `EngineConnection.pause_reading`."""
        self._was_paused = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume what was paused. aiohttp resumes what never was, too, after each piece read.

        That parses once more what has been parsed, for each request with a body.
        """
        if self._was_paused:
            super().resume_reading(resume_parser)


class ClientServer(web.Server):
    """aiohttp's server, with these connections."""

    def __call__(self) -> ClientConnection:
        """Return the protocol for a connection that was accepted."""
        return ClientConnection(self, loop=self._loop, **self._kwargs)
