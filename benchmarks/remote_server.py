"""Serves the files of a folder by ranges, each answer after a delay: a program, which prints its port.

``/counts`` answers the requests and bytes since the last ``/counts``.
"""

import http.server
import json
import sys
import threading
import time
from pathlib import Path

FOLDER, DELAY = Path(sys.argv[1]), float(sys.argv[2])
COUNTS = {"requests": 0, "bytes": 0}
LOCK = threading.Lock()


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers a request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        """Print nothing."""

    def do_GET(self):
        """Answer with a range of a file, or all of it."""
        if self.path == "/counts":
            with LOCK:
                body = json.dumps(COUNTS).encode()
                COUNTS.update(requests=0, bytes=0)
            self.answer(200, len(body))
            self.wfile.write(body)
            return
        time.sleep(DELAY)
        path = FOLDER / self.path.strip("/")
        if not path.is_file():
            self.answer(404, 0)
            return
        begin, end = 0, path.stat().st_size
        headers = {"ETag": '"1"'}
        status = 200
        if span := self.headers.get("Range"):
            first, _, last = span.removeprefix("bytes=").partition("-")
            headers["Content-Range"] = f"bytes {first}-{min(int(last), end - 1)}/{end}"
            begin, end, status = int(first), min(int(last) + 1, end), 206
        with LOCK:
            COUNTS["requests"] += 1
            COUNTS["bytes"] += end - begin
        self.answer(status, end - begin, headers)
        self.wfile.flush()
        with path.open("rb") as file:
            self.connection.sendfile(file, begin, end - begin)

    def answer(self, status, nbytes, headers=None):
        """Send the head of an answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(nbytes), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection."""

    daemon_threads = True
    request_queue_size = 256


if __name__ == "__main__":
    SERVER = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{SERVER.server_port}\n")
    sys.stdout.flush()
    SERVER.serve_forever()
