"""Requests that fail: retried within bounds, cancelled at the deadline, refused where retries cannot help."""

import pickle
import threading

import pytest
from tests.builders import normal
from tests.builders import safetensors as safe
from tests.remote.servers import MODIFIED, AsyncStore, Objects, Server, Stored, deadlines_pass_when_stuck
from tests.support import HANG

import weightmap as wm
from weightmap.cli import main
from weightmap.errors import FileChangedError, RemoteError
from weightmap.remote import fetching
from weightmap.remote.fetching import ATTEMPTS, StoreError
from weightmap.remote.stores import location_of
from weightmap.remote.web import WebStore

TENSOR = normal((300, 300))
MODEL = safe.build({"a": normal((3, 300)), "w": TENSOR})
AGAIN = ("500", "502", "503", "429", "408", "reset", "short")


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(fetching, "FIRST_WAIT", 0.0)


@pytest.fixture
def objects():
    """A store with one model; no request is stalled for longer than the test."""
    objects = Objects({"m": MODEL})
    yield objects
    objects.released.set()


@pytest.fixture(params=["server", "store", "async"])
def opened(request, objects):
    """A function that opens the model in a server, or in a store whose methods wait, or are awaited."""
    if request.param == "server":
        with Server(objects) as server:
            yield lambda **options: wm.open(server.url + "m", remote=wm.Remote(**options))
    else:
        store = (Stored if request.param == "store" else AsyncStore)(objects)
        yield lambda **options: wm.open("m", remote=wm.Remote(store, **options))


def right(file):
    return bool(file["w"].tobytes() == TENSOR.data)


def test_a_process_without_threads(opened, monkeypatch):
    """A request is an error then, not one that waits for ever, and the next one has its thread."""

    class NoThread(threading.Thread):
        def start(self):
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(fetching, "_loop", fetching.PerProcess(fetching._Loop))
    with monkeypatch.context() as patch:
        patch.setattr(fetching, "Thread", NoThread)
        with pytest.raises(RemoteError, match="no request can be made: can't start new thread"):
            opened()
    assert right(opened())


@pytest.mark.parametrize("fault", AGAIN)
def test_what_fails_in_passing_is_tried_again(fault, objects, opened):
    """Errors of a server, resets in the middle and answers that end early cost requests, and nothing else."""
    objects.faults = [fault] * (ATTEMPTS - 1)
    file = opened()
    objects.faults = [fault] * (ATTEMPTS - 1)
    assert right(file)
    objects.faults = ["", fault]
    assert right(file)


@pytest.mark.parametrize("fault", AGAIN)
def test_what_goes_on_failing_is_one_error(fault, objects, opened):
    """The attempts are bounded, then one error names the failure, without a word of the server's."""
    file = opened()
    objects.requests.clear()
    objects.always = fault
    with pytest.raises(RemoteError, match=r"bytes \d+ to \d+ cannot be read.*\(5 attempts\)") as caught:
        file["w"]
    assert len(objects.requests) == ATTEMPTS
    assert "secret" not in str(caught.value)
    assert pickle.loads(pickle.dumps(caught.value)).path == file.path
    with pytest.raises(RemoteError):
        opened()
    objects.always = ""
    assert right(file)


def test_bytes_that_came_are_not_asked_for_again(objects, opened):
    file = opened()
    objects.requests.clear()
    objects.faults = ["short"]
    assert right(file)
    first, second = objects.requests
    assert first.begin < second.begin < first.end == second.end


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("elsewhere", "other bytes than requested"),
        ("whole", "ignores ranges"),
        ("silent", "does not state its range"),
        ("400", "400 Bad Request"),
        ("499", "499"),
        ("more", "more bytes than requested"),
    ],
)
def test_wrong_answers_are_refused_at_once(fault, words, objects, opened):
    file = opened()
    if isinstance(file.path, str) and "://" not in file.path and fault in {"whole", "silent"}:
        fault, words = "elsewhere", "other bytes than requested"
    if "://" in file.path and fault == "more":
        fault, words = "elsewhere", "other bytes than requested"
    objects.requests.clear()
    objects.always = fault
    with pytest.raises(RemoteError, match=words):
        file["w"]
    assert len(objects.requests) == 1


@pytest.mark.parametrize("status", ["401", "403"])
def test_who_may_not_is_told_so(status, objects, opened):
    objects.always = status
    with pytest.raises(PermissionError, match="the store refuses it") as caught:
        opened()
    assert "secret" not in str(caught.value)
    assert len(objects.requests) == 1


@pytest.mark.parametrize("conditional", [True, False])
def test_a_changed_object_is_noticed(conditional, objects, opened):
    file = opened()
    objects.conditional = conditional
    assert right(file)
    assert {r.if_match for r in objects.requests[1:]} == {'"1"'}
    objects.etags["m"] = '"2"'
    with pytest.raises(FileChangedError, match="after it was opened"):
        file["w"]
    with pytest.raises(FileChangedError):
        file.verify()
    with pytest.raises(FileChangedError):
        dict(wm.plan(file).run())


def test_an_object_that_changes_while_it_is_opened(objects, opened):
    objects.faults = ["short"]
    objects.entered = lambda: objects.etags.update({"m": f'"{len(objects.requests)}"'})
    with pytest.raises(FileChangedError):
        opened()


def test_deleted_and_truncated_objects(objects, opened):
    file = opened()
    objects.objects["m"] = MODEL[:-4]
    with pytest.raises(FileChangedError):
        file["w"]
    objects.objects["m"] = MODEL[:100]
    with pytest.raises(FileChangedError):
        file["w"]
    del objects.objects["m"]
    with pytest.raises(FileChangedError):
        file["w"]
    with pytest.raises(FileNotFoundError):
        opened()


@pytest.mark.parametrize("tag", [None, 'W/"1"'])
def test_stores_without_strong_tags(tag, objects, opened):
    objects.etags["m"] = tag
    file = opened()
    assert right(file)
    assert {r.if_match for r in objects.requests} == {None}
    if tag is None:
        objects.modified = MODIFIED.replace(year=2027)
    else:
        objects.etags["m"] = 'W/"2"'
    with pytest.raises(FileChangedError):
        file["w"]


def test_objects_without_a_version_are_refused_unless_asked_for(objects, opened):
    """Without tag and time, two objects of one size could mix in a tensor: nothing is read."""
    objects.etags["m"], objects.modified = None, None
    with pytest.raises(
        RemoteError, match=r"neither an ETag nor a time .*download it, or remote=Remote\(unversioned=True\) opens it"
    ):
        opened()
    file = opened(unversioned=True)
    assert right(file)
    objects.objects["m"] = MODEL + b" "
    with pytest.raises(FileChangedError):
        file["w"]


ODD = {
    "year": ("Last-Modified", "Fri, 02 Jan 99999999999999999999 03:04:05 GMT", "Last-Modified is not a date"),
    "year 10000": ("Last-Modified", "Fri, 02 Jan 10000 03:04:05 GMT", "not a date"),
    "zone": ("Last-Modified", "Fri, 02 Jan 2026 03:04:05 +99999999999999999999", "not a date"),
    "zone of days": ("Last-Modified", "Fri, 02 Jan 2026 03:04:05 +9999", "not a date"),
    "digits": ("Last-Modified", "9" * 5000, "not a date"),
    "words": ("Last-Modified", "yesterday", "not a date"),
    "year 1": ("Last-Modified", "Mon, 01 Jan 0001 00:00:00 +2359", None),
    "no zone": ("Last-Modified", "Mon, 01 Jan 0001 00:00:00 -0000", None),
    "empty date": ("Last-Modified", "", None),
    "folded tag": ("ETag", '"1\r\n 2"', "ETag of the answer has control characters"),
    "tag of NUL": ("ETag", '"\0"', "control characters"),
    "long tag": ("ETag", "x" * 70000, "5 attempts"),
    "range without an end": ("Content-Range", "bytes 0-/10", "does not state its range"),
    "range of letters": ("Content-Range", "bytes a-b/c", "does not state its range"),
    "range of any size": ("Content-Range", "bytes 0-32767/*", "does not state its range"),
    "range of 2**63": ("Content-Range", "bytes 0-32767/9223372036854775808", "does not state its range"),
    "backward range": ("Content-Range", f"bytes 9-0/{len(MODEL)}", "other bytes"),
    "length": ("Content-Length", "many", None),
    "negative length": ("Content-Length", "-5", None),
    "no chunk": ("Transfer-Encoding", "chunked", "ended early|cannot be reached"),
    "no encoding": ("Transfer-Encoding", "\N{LATIN SMALL LETTER E WITH ACUTE}", None),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_headers_are_one_error(case, objects):
    name, value, words = ODD[case]
    with Server(objects) as server:
        file = wm.open(server.url + "m")
        objects.headers = {name: value}
        for read in (lambda: right(wm.open(server.url + "m")), lambda: right(file)):
            if words is not None:
                with pytest.raises(RemoteError, match=words):
                    read()
            elif read() is not True:
                pytest.fail("other bytes")


@pytest.mark.parametrize("size", ["-1", "-5", "-ffffffffffffffffffff"])
def test_a_chunk_of_negative_size_is_one_error(size, objects):
    with Server(objects) as server:
        file = wm.open(server.url + "m")
        objects.headers, objects.always = {"Transfer-Encoding": "chunked"}, f"chunk of {size}"
        for read in (lambda: wm.open(server.url + "m"), lambda: file["w"]):
            # Newer versions of http.client refuse the size themselves.
            with pytest.raises(RemoteError, match=r"chunk of negative size|ended early"):
                read()


@pytest.mark.parametrize("length", [None, "many", "-5", "1_0", "9" * 5000, "\N{SUPERSCRIPT TWO}"])
def test_an_object_without_bytes_has_a_length(length, objects):
    """An answer that calls the range too far, but does not state the object's length, is refused."""
    objects.objects["m"] = b""
    objects.headers = {"Content-Length": length, "Connection": "close"}
    with Server(objects) as server, pytest.raises(RemoteError, match=r"416|how long"):
        wm.open(server.url + "m")


def test_a_header_that_does_not_end_holds_no_thread(objects):
    """A server that sends a byte now and then keeps the reader until the deadline, and its thread not much longer."""
    objects.always = "trickle"
    with Server(objects) as server:
        path = location_of(server.url + "m", wm.Remote(deadline=0.05))
        with pytest.raises(RemoteError, match="took too long"):
            wm.open(path)
        path.access._threads.shutdown(wait=True)
    assert not objects.outlasted


def test_a_stuck_request_is_cancelled(objects, opened, monkeypatch):
    deadlines_pass_when_stuck(objects, monkeypatch)
    file = opened()
    objects.requests.clear()
    objects.faults = ["stall"]
    assert right(file)
    assert len(objects.requests) in {1, 2}  # a cancelled store has noted nothing


def test_requests_that_stay_stuck_are_one_error(objects, opened, monkeypatch):
    deadlines_pass_when_stuck(objects, monkeypatch)
    file = opened()
    objects.always = "stall"
    with pytest.raises(RemoteError, match="took too long"):
        file["w"]


def test_bytes_of_a_given_up_request_go_nowhere(objects, monkeypatch):
    """Late bytes of a stuck request that was given up do not reach the next one's array."""
    late, done = threading.Event(), threading.Event()

    class Late(Stored):
        def get(self, path, *, options):
            answer = super().get(path, options=options)
            if len(objects.requests) == 2:
                whole = list(answer)

                def pieces():
                    objects.stuck()
                    late.wait(HANG)
                    yield bytes(len(whole[0]))
                    done.set()  # pragma: no cover - nobody asks for more

                answer.__class__ = type("Late", (type(answer),), {"__iter__": lambda _: pieces()})
            return answer

    deadlines_pass_when_stuck(objects, monkeypatch)
    file = wm.open("m", remote=wm.Remote(Late(objects)))
    array = file["w"]
    late.set()
    wm.open("m", remote=wm.Remote(Late(objects), concurrency=1))["w"]
    assert array.tobytes() == TENSOR.data
    assert not done.is_set()


def test_an_answer_that_comes_after_its_deadline_is_closed(objects, monkeypatch):
    """The answer of a store that blocks: its thread closes it, for nobody waits for it any more."""
    closed = []

    class Late(Stored):
        def get(self, path, *, options):
            answer = super().get(path, options=options)
            answer.close = lambda: closed.append(options)
            return answer

    deadlines_pass_when_stuck(objects, monkeypatch)
    access, objects.faults = fetching.Access(Late(objects), None, HANG), ["stall"]
    with pytest.raises(StoreError, match="took too long"):
        access.run(access.look("m"))
    objects.released.set()
    access._threads.shutdown(wait=True)
    assert closed == [{"head": True}]


def test_a_server_that_drips_is_given_up(objects, monkeypatch):
    """A byte now and then does not prolong a request."""
    deadlines_pass_when_stuck(objects, monkeypatch)
    with Server(objects) as server:
        file = wm.open(server.url + "m")
        objects.always = "drip"
        with pytest.raises(RemoteError, match="took too long"):
            file["w"]


def test_remedies_are_options_of_commands(objects, capsys, tmp_path):
    """An error names an option that exists where it is printed, and helps there."""
    with Server(objects) as server:
        for command in (["inspect"], ["verify"], ["convert"], ["export"], ["doctor"], ["diff"]):
            more = {
                "convert": [str(tmp_path / "m.amb")],
                "export": ["w", str(tmp_path / "w.npy")],
                "diff": [server.url + "m"],
            }.get(command[0], [])
            asked = [*command, server.url + "m", *more]
            objects.faults, objects.redirect = ["302"], "/m"
            assert main(asked) == 4
            assert "--redirects follows it" in "".join(capsys.readouterr())
            objects.faults = ["302"]
            assert main([*asked, "--redirects"]) == 0
            objects.etags["m"], objects.modified, modified = None, None, objects.modified
            assert main(asked) == 4
            assert "--unversioned opens it" in "".join(capsys.readouterr())
            assert main([*asked, "--unversioned"]) == 0
            objects.modified = modified
            del objects.etags["m"]
        objects.always = "stall"
        assert main(["inspect", server.url + "m", "--deadline", "0.05"]) == 4
        assert "--deadline gives it more time" in capsys.readouterr().err
        assert main(["inspect", server.url + "m", "--deadline", "0"]) == 2
        assert main(["inspect", "m", "--deadline", "nan"]) == 2


def test_redirects_are_refused_unless_asked_for(objects):
    objects.objects["elsewhere"] = MODEL
    with Server(objects) as server:
        objects.faults = ["302"]
        with pytest.raises(RemoteError, match=r"redirects to 127\.0\.0\.1; remote=Remote\(redirects=True\) follows it"):
            wm.open(server.url + "m")
        assert [r.key for r in objects.requests] == ["m"]
        objects.faults = ["307", "", "301"]
        assert right(wm.open(server.url + "m", remote=wm.Remote(redirects=True)))
        objects.always = "302"
        with pytest.raises(RemoteError, match="in a circle"):
            wm.open(server.url + "m", remote=wm.Remote(redirects=True))


NO_ADDRESSES = ["[::1", "host:99999/m", "host:abc/m", "host:-1/m", f"{'a' * 64}/m", "a..b/m", ".a/m", "ho\0st/m"]
NO_ADDRESSES = [*(f"http://{rest}" for rest in NO_ADDRESSES), "http://\N{ACCOUNT OF}/m", "https:", "//["]


@pytest.mark.parametrize("target", NO_ADDRESSES)
def test_redirects_to_no_address_are_refused(target, objects):
    objects.always, objects.redirect = "302", target
    with Server(objects) as server:
        with pytest.raises(RemoteError, match=r"redirects to (an invalid address|an address that names no host)"):
            wm.open(server.url + "m", remote=wm.Remote(redirects=True))
        with pytest.raises(RemoteError, match="redirects"):
            wm.open(server.url + "m")
    assert len(objects.requests) == 2


@pytest.mark.parametrize("target", [None, "", "?", "http:", "#"])
def test_redirects_to_itself_end(target, objects):
    """An empty Location leads back, a few times."""
    objects.always, objects.redirect = "302", target
    with Server(objects) as server, pytest.raises(RemoteError, match="in a circle"):
        wm.open(server.url + "m", remote=wm.Remote(redirects=True))


def test_the_query_stays_behind_at_a_redirect(objects):
    """Another host, or another path, gets nothing behind the question mark of the caller's address."""
    other, name = Objects({"m \N{LATIN SMALL LETTER E WITH ACUTE}": MODEL}), "m \N{LATIN SMALL LETTER E WITH ACUTE}"
    objects.objects[name] = MODEL
    objects.faults = ["302", "", "302"]
    with Server(objects) as server, Server(other) as elsewhere:
        for objects.redirect in (f"/{name}", f"{elsewhere.url}{name}?own=1"):
            wm.open(server.url + "m?token=SECRET", remote=wm.Remote(redirects=True))
    assert [request.target for request in objects.requests] == ["/m?token=SECRET", "/m%20%C3%A9", "/m?token=SECRET"]
    assert [request.target for request in other.requests] == ["/m%20%C3%A9?own=1"]


@pytest.mark.parametrize("target", ["http://host/m", "file:///etc/passwd", "ftp://host/m"])
def test_redirects_lead_to_no_unprotected_address(target):
    store = WebStore("https://host/", 1, redirects=True)
    with pytest.raises(StoreError, match="not protected"):
        store._followed("https://host/m", target)
    with pytest.raises(StoreError, match="not protected"):
        store._followed("HTTPS://host/m", target)
    assert store._followed("https://host/m", "https://other/m") == "https://other/m"


def test_hosts_that_are_not_there(objects):
    with Server(objects) as server:
        url = server.url
    with pytest.raises(RemoteError, match=r"connection was refused \(5 attempts\)"):
        wm.open(url + "m")
    with pytest.raises(RemoteError, match=r"host is unknown|cannot be reached"):
        wm.open("https://nowhere.invalid/m")


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("Server returned non-2xx status code: 503 Slow Down: <Key>secret</Key>", "again", "503 Service Unavailable"),
        ("error sending request ... 169.254.169.254/latest/api/token", "again", "no credentials were found"),
        ("UnexpectedRange { expected: 1..2 }", "refused", "other bytes"),
        ("Received non-partial response when range requested: NotPartial", "refused", "ignores ranges"),
        ("source: TimedOut", "again", "took too long"),
        ("kind: ConnectionRefused", "again", "refused"),
        ("invalid peer certificate: UnknownIssuer", "refused", "certificate"),
        ("dns error: failed to lookup address", "again", "unknown"),
        ("hyper IncompleteBody", "again", "ended early"),
        ("something secret", "again", "cannot be reached"),
    ],
)
def test_what_obstore_says_becomes_words_of_ours(text, kind, words):
    error = type("GenericError", (Exception,), {"__module__": "obstore.exceptions"})(text)
    fault = fetching._fault_of(error)
    assert fault.kind == kind
    assert words in fault.words
    assert "secret" not in fault.words
