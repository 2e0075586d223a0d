"""Proxies of the environment, and logins of ~/.netrc: for addresses of HTTP and HTTPS, and for the Hub."""

import base64
import contextlib
import datetime as dt
import ipaddress
import select
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import numpy as np
import pytest
from tests.builders import safetensors as safe
from tests.builders import tensor
from tests.remote.servers import Objects, Server
from tests.support import HANG

import weightmap as wm
from weightmap.cli import main
from weightmap.remote import fetching
from weightmap.remote.web import WebStore

W = np.arange(6, dtype=np.float32)
LOGIN = "Basic " + base64.b64encode(b"me:SEC RET").decode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "Proxy"

    def log_message(self, *_):
        """Print nothing."""

    def _allowed(self):
        self.server.asked.append((self.command, self.path, self.headers.get("Proxy-Authorization")))
        status = self.server.refuses
        if self.server.login is not None and self.headers.get("Proxy-Authorization") != self.server.login:
            status = 407
        if status:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()
        return not status

    def do_CONNECT(self):
        """Join the two connections."""
        if not self._allowed():
            return
        port = int(self.path.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), 20) as there:
            self.send_response(200)
            self.end_headers()
            ends = {self.connection: there, there: self.connection}
            while True:
                for end in select.select([*ends], [], [], 20)[0]:
                    if not (data := end.recv(1 << 16)):
                        self.close_connection = True
                        return
                    ends[end].sendall(data)

    def do_GET(self):
        """Ask the server that the address names, whatever its host is called."""
        if not self._allowed():
            return
        parts = urlsplit(self.path)
        with socket.create_connection(("127.0.0.1", parts.port or 80), 20) as there:
            names = {"Range", "If-Match", "Authorization"}
            lines = [f"{name}: {value}" for name, value in self.headers.items() if name.title() in names]
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            head = "\r\n".join([f"{self.command} {target} HTTP/1.1", "Host: h", "Connection: close", *lines])
            there.sendall(f"{head}\r\n\r\n".encode())
            self.close_connection = True
            while data := there.recv(1 << 16):
                self.wfile.write(data)


class Proxy(ThreadingHTTPServer):
    """A proxy that takes every host for this machine."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str, str | None]] = []
        self.login: str | None = None
        self.refuses = 0
        self.host = f"127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """Print nothing of clients that went away."""


@pytest.fixture
def proxy():
    with Proxy() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _environment(monkeypatch, tmp_path):
    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "NETRC"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def objects():
    return Objects({"m": safe.build({"w": tensor(W)})})


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """The key and the certificate of a host that is called far.test."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "far.test")])
    names = x509.SubjectAlternativeName([x509.DNSName("far.test"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = (
        made.serial_number(1).not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=9))
    )
    made = made.add_extension(names, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    path = tmp_path_factory.mktemp("tls") / "far.pem"
    how = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(key.private_bytes(*how) + made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    return path


@contextlib.contextmanager
def secured(objects, certificate, monkeypatch):
    """Serve objects over TLS; yield the port."""
    server = Server(objects)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with server:
        yield int(server.host.rpartition(":")[2])


@pytest.mark.parametrize("scheme", ["HTTPS", "Https"])
def test_https_in_capitals_is_https(scheme, objects, certificate, monkeypatch):
    """Of a redirect and of a base: neither a signature nor a token goes out in plain HTTP."""
    elsewhere = Objects({})
    with secured(objects, certificate, monkeypatch) as port, Server(elsewhere) as server:
        base = f"{scheme}://127.0.0.1:{port}/"
        elsewhere.always, elsewhere.redirect = "302", f"{base}m?signature=SECRET"
        assert len(wm.load(f"{server.url}m", remote=wm.Remote(redirects=True))) == 1
        WebStore(base, HANG, private={"authorization": "SECRET"}).get("m", options={"range": (0, 1)}).close()


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy"])
@pytest.mark.parametrize("login", ["", "me:SEC%20RET@"])
def test_a_proxy_of_http(variable, login, proxy, objects, monkeypatch):
    """A host that this machine does not know is asked for by its whole address."""
    proxy.login = LOGIN if login else None
    with Server(objects) as server:
        port = server.host.rpartition(":")[2]
        monkeypatch.setenv(variable, f"http://{login}{proxy.host}/")
        assert np.array_equal(wm.load(f"http://far.test:{port}/m")["w"], W)
        assert {(command, path) for command, path, _ in proxy.asked} == {("GET", f"http://far.test:{port}/m")}
        count = len(proxy.asked)
        for bypassed in ("127.0.0.1", "*", f".test,127.0.0.1:{port}"):
            monkeypatch.setenv("no_proxy", bypassed)
            assert np.array_equal(wm.load(f"{server.url}m")["w"], W)
        assert len(proxy.asked) == count


@pytest.mark.parametrize("variable", ["https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize("login", ["", "me:SEC%20RET@"])
def test_a_tunnel_to_a_host_of_https(variable, login, proxy, objects, certificate, monkeypatch):
    """The certificate is the host's, and the proxy sees no request."""
    proxy.login = LOGIN if login else None
    with secured(objects, certificate, monkeypatch) as port:
        monkeypatch.setenv(variable, f"{login}{proxy.host}")  # without a scheme, as many have it
        assert np.array_equal(wm.load(f"https://far.test:{port}/m")["w"], W)
        assert {(command, path) for command, path, _ in proxy.asked} == {("CONNECT", f"far.test:{port}")}
        with pytest.raises(wm.RemoteError, match="certificate of the host is not trusted"):
            wm.open(f"https://other.test:{port}/m")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        count = len(proxy.asked)
        assert np.array_equal(wm.load(f"https://127.0.0.1:{port}/m")["w"], W)
        assert len(proxy.asked) == count


@pytest.mark.parametrize(
    ("refuses", "words"),
    [(407, "proxy wants a name and a password"), (403, "proxy refuses to connect"), (502, "proxy cannot connect")],
)
def test_a_proxy_that_refuses(refuses, words, proxy, monkeypatch, capsys):
    """The error says that it was the proxy, and repeats no part of its address."""
    proxy.refuses = refuses
    for scheme, expected in (("https", words), ("http", str(refuses))):
        monkeypatch.setenv(f"{scheme}_proxy", f"http://me:SECRET@{proxy.host}")
        with pytest.raises(OSError, match=expected) as caught:
            wm.open(f"{scheme}://far.test/m")
        assert main(["inspect", f"{scheme}://far.test/m"]) == 4
        assert "SECRET" not in str(caught.value) + capsys.readouterr().err


@pytest.mark.parametrize(
    "address", ["socks5://me:SECRET@host:1", "ftp://SECRET@h", "http://", "http://h:SECRET/", "//["]
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_proxies_that_cannot_be_used(address, scheme, monkeypatch):
    """An error names a proxy of another kind, or without a host, by its variable alone."""
    monkeypatch.setenv(f"{scheme}_proxy", address)
    with pytest.raises(wm.RemoteError, match=rf"proxy for {scheme} .*no_proxy") as caught:
        wm.open(f"{scheme}://far.test/m")
    assert "SECRET" not in str(caught.value)


def test_a_login_for_a_host(proxy, objects, monkeypatch, tmp_path):
    """The host that ~/.netrc names gets its login, and no other host: not those of redirects, and none by default."""
    seen = []
    with Server(objects) as server:
        handler = server._server.RequestHandlerClass

        class Noting(handler):
            def do_GET(self):  # noqa: N802 - the name that the library asks for
                seen.append((self.headers["Host"], self.headers.get("Authorization")))
                super().do_GET()

        server._server.RequestHandlerClass = Noting
        port = server.host.rpartition(":")[2]
        own = f"Basic {base64.b64encode(b'me:SECRET').decode()}"
        (tmp_path / ".netrc").write_text("machine 127.0.0.1 login me password SECRET\ndefault login x password y\n")
        wm.open(f"{server.url}m").close()
        objects.faults, objects.redirect = ["302"], f"http://localhost:{port}/m"
        wm.open(f"{server.url}m", remote=wm.Remote(redirects=True)).close()
        wm.open(f"http://localhost:{port}/m").close()
        assert seen == [(server.host, own)] * 2 + [(f"localhost:{port}", None)] * 2
        seen.clear()
        (tmp_path / "other").write_text("machine localhost\nlogin me\npassword SECRET\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "other"))
        wm.open(f"http://localhost:{port}/m").close()
        (tmp_path / "other").write_bytes(b"machine \xff SECRET")
        wm.open(f"http://localhost:{port}/m").close()
        assert [login for _, login in seen] == [own, None]
