"""Real servers on the loopback for tests of object stores: nginx, an S3 server, and a proxy that breaks connections."""

import base64
import contextlib
import hmac
import http.client
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import urllib.request
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from tests.support import HANG, until

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
# Microsoft's emulator of Azure's blobs, with its published account.
AZURITE = shutil.which("azurite-blob")
AZURE_KEYS = {
    "AZURE_STORAGE_ACCOUNT_NAME": "devstoreaccount1",
    "AZURE_STORAGE_ACCOUNT_KEY": (
        "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
    ),
    "AZURE_ALLOW_HTTP": "true",
}
_CONFIGURATION = """
daemon off; {user} worker_processes 2; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
  log_format asked '$uri "$http_range" "$http_if_match" $status $body_bytes_sent';
  access_log {folder}/access.log asked;
  client_body_temp_path {folder}/t; proxy_temp_path {folder}/t; fastcgi_temp_path {folder}/t;
  uwsgi_temp_path {folder}/t; scgi_temp_path {folder}/t; sendfile on;
  server {{
    listen 127.0.0.1:{port};
    root {folder}/data;
    location /moved/ {{ rewrite ^/moved/(.*)$ /$1 redirect; }}
    location /broken/ {{ return 503; }}
    location /forbidden/ {{ return 403; }}
    location /whole/ {{ alias {folder}/data/; max_ranges 0; }}
    location /slow/ {{ alias {folder}/data/; limit_rate 1k; }}
    location /untagged/ {{ alias {folder}/data/; etag off; }}
  }}
}}
"""


class Nginx(NamedTuple):
    url: str
    data: Path
    log: Path

    def asked(self):
        found = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            head, span, _, _, end = line.split('"')
            status, nbytes = end.split()
            found.append((head.strip(), span, int(status), int(nbytes)))
        return found


def _free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def _running(port, *command):
    """Run a server until the end of the block, which begins when the server answers."""
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: process.poll() is not None or _answers(port))
        assert process.poll() is None, f"no server came up: {process.args}"
        yield
    finally:
        process.terminate()
        process.wait()


def _answers(port):
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port)).close()
        return True


@contextlib.contextmanager
def nginx(folder):
    port = _free_port()
    (folder / "data").mkdir()
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers may not read the folder
    (folder / "nginx.conf").write_text(_CONFIGURATION.format(folder=folder, port=port, user=user), encoding="utf-8")
    assert NGINX is not None
    with _running(port, NGINX, "-p", folder, "-c", folder / "nginx.conf"):
        yield Nginx(f"http://127.0.0.1:{port}/", folder / "data", folder / "access.log")


@contextlib.contextmanager
def s3():
    """Run an S3 server with one bucket, called "bucket", that anybody may read; yield its endpoint."""
    port = _free_port()
    with _running(port, sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port):
        endpoint = f"http://127.0.0.1:{port}"
        new = urllib.request.Request(f"{endpoint}/bucket", headers={"x-amz-acl": "public-read"}, method="PUT")
        urllib.request.urlopen(new).close()
        yield endpoint


@contextlib.contextmanager
def azure():
    port = _free_port()
    assert AZURITE is not None
    flags = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry")
    with _running(port, AZURITE, "--blobHost", "127.0.0.1", "--blobPort", port, *flags):
        endpoint = f"http://127.0.0.1:{port}/{AZURE_KEYS['AZURE_STORAGE_ACCOUNT_NAME']}"
        urllib.request.urlopen(_new_container(endpoint)).close()
        yield endpoint


def _new_container(endpoint):
    """Return the signed request that makes the container: obstore has none."""
    account, kind = AZURE_KEYS["AZURE_STORAGE_ACCOUNT_NAME"], "application/octet-stream"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 4, kind, *[""] * 6, *(f"{name}:{value}" for name, value in headers.items())]
    text = "\n".join([*lines, f"/{account}/{account}/models", "restype:container"])
    key = base64.b64decode(AZURE_KEYS["AZURE_STORAGE_ACCOUNT_KEY"])
    signature = base64.b64encode(hmac.digest(key, text.encode(), "sha256")).decode()
    headers |= {"Authorization": f"SharedKey {account}:{signature}", "Content-Type": kind}
    return urllib.request.Request(f"{endpoint}/models?restype=container", data=b"", headers=headers, method="PUT")


class Proxy:
    """Passes connections on to a server, and applies `faults` to the answers, one to each connection.

    "" passes all on; "reset" ends with a reset after some bytes, "short" ends there, "500" answers that by itself,
    "stall" passes nothing on.
    """

    BYTES = 3000

    def __init__(self, target):
        host, _, port = target.removeprefix("http://").partition(":")
        self._target = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.faults = []
        self.always = ""
        self.connections = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def close(self):
        self._ended.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._thread.join()
        self._listener.close()

    def _listen(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                fault = self.faults.pop(0) if self.faults else self.always
                threading.Thread(target=self._serve, args=(client, fault), daemon=True).start()

    def _serve(self, client, fault):
        with contextlib.suppress(OSError), client:
            request = client.recv(1 << 16)
            if fault == "stall":
                self._ended.wait(HANG)
                return
            if fault == "500":
                client.sendall(b"HTTP/1.1 500 No\r\nContent-Length: 6\r\nConnection: close\r\n\r\nSECRET")
                return
            with socket.create_connection(self._target) as server:
                # One request a connection, so that each meets a fault of its own.
                server.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
                left = self.BYTES if fault else 1 << 60
                while left and (piece := server.recv(min(left, 1 << 16))):
                    client.sendall(piece)
                    left -= len(piece)
            if fault == "reset":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@contextlib.contextmanager
def proxy(target):
    made = Proxy(target)
    try:
        yield made
    finally:
        made.close()


class Forwarder(BaseHTTPRequestHandler):
    """Passes whole requests on to a server; refuses those whose path has `refuse` in it."""

    protocol_version = "HTTP/1.1"

    def _pass_on(self):
        own = self.server
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        own.asked.append(f"{self.command} {self.path}")
        if own.refuse is not None and own.refuse in self.path:
            status, headers, answer = 403, [], b""
        else:
            connection = http.client.HTTPConnection(*own.target)
            connection.request(self.command, self.path, body, dict(self.headers))
            response = connection.getresponse()
            status, headers, answer = response.status, response.getheaders(), response.read()
            connection.close()
        left_out = {"connection", "transfer-encoding", "content-length"}
        length = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in left_out:
                self.send_header(name, value)
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(answer)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client gave this request up
            self.wfile.write(answer)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - names of http.server

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def forwarder(target):
    host, _, port = target.removeprefix("http://").partition(":")
    with ThreadingHTTPServer(("127.0.0.1", 0), Forwarder) as made:
        made.target, made.refuse, made.asked = (host, int(port)), None, []
        made.daemon_threads, made.url = True, f"http://127.0.0.1:{made.server_port}"
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()
