"""The part of SGLang's HTTP server that tells where the events are: ``/server_info``."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class ServerInfo:
    """A loopback HTTP server that answers ``GET /server_info``, and 404 to all else. A context manager.

    Args:
        info: what it answers, as a JSON object.

    Attributes:
        url: ``http://127.0.0.1:PORT``, without a path.
    """

    def __init__(self, info: Mapping[str, Any]) -> None:
        body = json.dumps(dict(info)).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.partition("?")[0] == "/server_info"
                answer = body if found else b'{"error": "not found"}'
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing: the terminal belongs to the report."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the port."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> ServerInfo:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
