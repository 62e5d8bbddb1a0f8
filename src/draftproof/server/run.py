"""Runs the server until it is told to stop."""

from __future__ import annotations

import logging
import sys
from types import FrameType

import uvicorn

from draftproof.api import Pair
from draftproof.server.app import App, ServerSettings
from draftproof.server.logs import JsonFormatter


class _Server(uvicorn.Server):
    """Says at the first signal that no new requests are taken; those that run may end."""

    app: App

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.app.service.draining = True
        super().handle_exit(sig, frame)


def serve(pair: Pair, settings: ServerSettings, *, host: str, port: int, json_logs: bool) -> None:
    """Serve until SIGTERM or Ctrl-C; running requests then have `drain_seconds` to end."""
    _log_to_stderr(json_logs=json_logs)
    app = App(pair, settings)
    config = uvicorn.Config(
        app.build(),
        host=host,
        port=port,
        log_config=None,
        access_log=False,  # the gate writes a line per request
        timeout_graceful_shutdown=int(settings.drain_seconds),
    )
    server = _Server(config)
    server.app = app
    server.run()


def _log_to_stderr(*, json_logs: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if json_logs else plain)
    for name in ("draftproof", "uvicorn"):
        log = logging.getLogger(name)
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
