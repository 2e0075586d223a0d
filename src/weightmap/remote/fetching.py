"""Requests for bytes of objects in a store: repeated within bounds, cancelled at a deadline, checked.

A store is anything with the method ``get(path, *, options)`` of obstore's stores, or ``get_async``. All requests of the
process run in one event loop, in its own thread. A store's error texts never leave this module, because they may hold
signed addresses: `StoreError` has our own words.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import http.client
import random
import re
import sys
import time
from bisect import bisect_right
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from itertools import accumulate
from pathlib import Path
from threading import Lock, Thread
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from weightmap.core.bytes.memory import PerProcess
from weightmap.errors import Remedy, RemoteError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence

# A read fails after this many successive requests that each brought less than _PROGRESS bytes.
ATTEMPTS, _PROGRESS = 5, 1 << 20
# First and longest wait before another request, in seconds.
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0
# Longest wait, in seconds, that a server can impose by the header Retry-After; the values that count.
MAX_RETRY_AFTER = 60.0
_RETRY_AFTER = re.compile("[0-9]{1,9}")
# Requests at a time, of any size and small ones; bytes of the largest small request.
CONCURRENCY, SMALL_CONCURRENCY, _MAX_SMALL_BYTES = 16, 64, 256 << 10
# Seconds to wait for cancelled requests when the process ends.
_LAST_WAIT = 2.0
# The slowest rate, in bytes per second: each further piece of this size adds a second to the deadline.
SLOWEST = 1 << 20
# Bytes of an answer to copy at once.
_CHUNK = 1 << 20
# Statuses below 500 after which another request may succeed.
_TEMPORARY = frozenset({408, 425, 429})
# Most parts of an upload, and their size in bytes.
_MAX_PARTS, _PART_BYTES = 9000, 5 << 20
# Largest object, in bytes, to write in one request, which can have the condition that the object is new.
_MAX_WHOLE_BYTES = 32 << 20


class StoreError(Exception):
    """A failed request, and the reason.

    Attributes
    ----------
    kind : str
        "again": another request may succeed. "missing", "denied", "changed": the object's state. "beyond": the range
        lies behind its end. "exists": a new object has the name of another one. "refused": no request can succeed.
    words : str
        The text for messages.
    specific : bool
        Whether the words say more than the system's "No such file".
    after : float
        Seconds that the server asks to wait before another request.
    remedy : Remedy or None
        The option that would help.
    """

    def __init__(
        self, kind: str, words: str, *, specific: bool = False, after: float = 0.0, remedy: Remedy | None = None
    ) -> None:
        super().__init__(words)
        self.kind = kind
        self.words = words
        self.specific = specific
        self.after = after
        self.remedy = remedy


class Pin(NamedTuple):
    """The state of an object when it was opened.

    Attributes
    ----------
    size : int
    etag : str or None
    modified : float
        Modification time, in seconds; 0 if the store does not tell.
    """

    size: int
    etag: str | None
    modified: float

    @classmethod
    def of(cls, meta: Any) -> Pin:
        """Return the state in an object's metadata from obstore."""
        modified = meta.get("last_modified")
        return cls(int(meta["size"]), meta.get("e_tag") or None, modified.timestamp() if modified else 0.0)

    @property
    def condition(self) -> dict[str, str]:
        """Options with which the store refuses a request for a changed object; weak tags cannot do this."""
        return {} if self.etag is None or self.etag.startswith("W/") else {"if_match": self.etag}

    @property
    def is_versioned(self) -> bool:
        """Whether the state distinguishes the object from another one of the same size."""
        return self.etag is not None or self.modified != 0

    def check(self, now: Pin) -> None:
        """Raise a `StoreError` for another object."""
        same = self.etag == now.etag if self.etag is not None else self.modified == now.modified
        if self.size != now.size or not same:
            raise StoreError("changed", "the object was replaced")


def pause(failed: int, after: float) -> float:
    """Return the seconds to wait after some failures, at least the server's Retry-After up to its limit."""
    wait: float = min(FIRST_WAIT * 2 ** (failed - 1), LONGEST_WAIT) * random.uniform(0.5, 1)  # noqa: S311 - spreads clients
    return max(wait, min(after, MAX_RETRY_AFTER))


def fault_of_status(status: int, headers: Any = MappingProxyType({})) -> StoreError:
    """Return the error for a status other than success."""
    try:
        words = f"{status} {http.HTTPStatus(status).phrase}"
    except ValueError:
        words = f"{status}"
    if status >= http.HTTPStatus.INTERNAL_SERVER_ERROR or status in _TEMPORARY:
        after = headers.get("Retry-After") or ""
        return StoreError("again", words, after=float(after) if _RETRY_AFTER.fullmatch(after) else 0.0)
    kinds = {
        404: "missing",
        410: "missing",
        401: "denied",
        403: "denied",
        412: "changed",
        416: "beyond",
    }
    return StoreError(kinds.get(status, "refused"), words)


# obstore's exceptions by class name, because importing obstore is slow and other stores use the same names.
_KINDS = {
    "FileNotFoundError": ("missing", "there is no such object"),
    "NotFoundError": ("missing", "there is no such object"),
    "PermissionError": ("denied", "permission denied"),
    "PermissionDeniedError": ("denied", "permission denied"),
    "UnauthenticatedError": ("denied", "the credentials are missing or wrong"),
    "AlreadyExistsError": ("exists", "the object exists already"),
    "PreconditionError": ("changed", "the object was replaced"),
    "NotModifiedError": ("changed", "the object was replaced"),
    "NotSupportedError": ("refused", "the store does not support this request"),
    "InvalidPathError": ("refused", "the store does not accept this name"),
    "RustPanic": ("refused", "this address makes no valid request with the credentials and endpoint of its store"),
}
TOO_LONG = "took too long"
MORE_TIME = Remedy("{} gives it more time", "deadline")
# Patterns in foreign error texts, and our safe words for them.
_WORDS = (
    (r"Tunnel connection failed: 407", "refused", "the proxy wants a name and a password, in https_proxy"),
    (r"Tunnel connection failed: 4", "refused", "the proxy refuses to connect to the host"),
    (r"Tunnel connection failed", "again", "the proxy cannot connect to the host"),
    (r"169\.254\.169\.254|metadata\.google", "again", "no credentials were found"),
    (r"NotPartial", "refused", "the store ignores ranges: download the object, and open that"),
    (r"StartTooLarge", "beyond", "the object has no such bytes"),
    (r"UnexpectedRange|Requested \d+\.\.\d+, got", "refused", "the answer has other bytes than requested"),
    (r"(?i)tim(ed? ?out|eout)", "again", f"the request {TOO_LONG}"),
    (r"BadScheme", "refused", "plain HTTP is not allowed: AWS_ALLOW_HTTP=true, or its like, allows it"),
    (r"(?i)refused", "again", "the connection was refused"),
    (r"(?i)reset|broken pipe|abort", "again", "the connection was reset"),
    (r"(?i)dns|resolve|name or service|getaddrinfo", "again", "the host is unknown"),
    (r"(?i)certificate", "refused", "the certificate of the host is not trusted"),
    (r"(?i)incomplete|unexpected ?eof|body|closed", "again", "the answer ended early"),
)


def _fault_of(error: Exception) -> StoreError | None:
    """Return the error for an exception of a store; None for a programming mistake."""
    if isinstance(error, StoreError):
        return error
    kind_and_words = next((_KINDS[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in _KINDS), None)
    if kind_and_words is not None:
        return StoreError(*kind_and_words)
    of_store = type(error).__module__.partition(".")[0] == "obstore"
    if not of_store and not isinstance(error, (OSError, EOFError, http.client.HTTPException)):
        # obstore's error for a name is a ValueError.
        return StoreError(*_KINDS["InvalidPathError"]) if isinstance(error, ValueError) else None
    text = f"{type(error).__name__} {error}".replace("retry_timeout", "")
    status = re.search(r"status code: (\d{3})", text)
    if status is not None:
        return fault_of_status(int(status[1]))
    for pattern, kind, words in _WORDS:
        if re.search(pattern, text):
            return StoreError(kind, words, remedy=MORE_TIME if words.endswith(TOO_LONG) else None)
    return StoreError("again", "the store cannot be reached")


class Pieces:
    """Several pieces of memory for one answer. A slice never goes beyond the piece that it begins in."""

    def __init__(self, pieces: Sequence[memoryview]) -> None:
        self._pieces = pieces
        self._ends = list(accumulate(map(len, pieces)))

    def __getitem__(self, part: slice) -> memoryview:
        number = bisect_right(self._ends, part.start)
        if number == len(self._ends):
            return memoryview(b"")
        piece = self._pieces[number]
        before = self._ends[number] - len(piece)
        return piece[part.start - before : part.stop - before]


class _Attempt:
    """One request, and the memory for its answer."""

    def __init__(self, begin: int, done: int, end: int, target: memoryview | Pieces, pin: Pin | None) -> None:
        self.done, self.end, self.pin = done, end, pin  # `done`: the position behind the last received byte
        self._begin, self._target = begin, target
        self._lock = Lock()
        self._is_abandoned = False
        self._abort: Callable[[], None] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The options of the request."""
        return {"range": (self.done, self.end), **(self.pin.condition if self.pin is not None else {})}

    def check_head(self, answer: Any) -> None:
        """Check the state and the range in an answer's head."""
        pin = Pin.of(answer.meta)
        if self.pin is not None:
            self.pin.check(pin)
        self.pin = pin
        first, stop = answer.range
        self.end = min(self.end, pin.size)
        if (first, stop) != (self.done, self.end):
            raise StoreError("refused", "the answer has other bytes than requested")

    def _room(self, count: int) -> memoryview:
        """Return memory for up to `count` more bytes."""
        at = self.done - self._begin
        return self._target[at : at + count]

    def take(self, chunk: bytes) -> bool:
        """Copy bytes to the target; False after `give_up`, because the memory may have another owner."""
        with self._lock:
            if self._is_abandoned:
                return False
            if len(chunk) > self.end - self.done:
                raise StoreError("refused", "the answer has more bytes than requested")
            pending = memoryview(chunk)
            while pending:
                room = self._room(len(pending))
                room[:] = pending[: len(room)]
                pending = pending[len(room) :]
                self.done += len(room)
        return True

    def read(self, answer: Any) -> None:
        """Check an answer's head, and take its bytes until `give_up`."""
        self.check_head(answer)
        if hasattr(answer, "readinto1"):
            self.receive(answer)
        else:
            for chunk in answer:
                if not self.take(chunk):
                    return
        self.finish()

    def receive(self, answer: Any) -> None:
        """Let an answer write its bytes to the target, until all have come, or until `give_up`."""
        self._abort = answer.abort
        while self.done < self.end:
            with self._lock:
                if self._is_abandoned:
                    return
                count = answer.readinto1(self._room(min(_CHUNK, self.end - self.done)))
                self.done += count
            if not count:
                return

    def give_up(self) -> None:
        """Take no more bytes, and abort an answer that is writing."""
        if self._abort is not None and self.done < self.end:
            self._abort()
        with self._lock:
            self._is_abandoned = True

    def finish(self) -> None:
        """Check that all bytes have come."""
        if self.done < self.end:
            raise StoreError("again", "the answer ended early")


class Call:
    """A coroutine in the loop of the process, for a thread that waits for it.

    The thread waits for a plain lock. Futures use `threading.Condition`, which an interrupt could leave locked; then
    the loop would wait for ever.
    """

    def __init__(
        self, work: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop, on_end: Callable[[Call], object]
    ) -> None:
        self._work, self._loop, self._on_end = work, loop, on_end
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False
        self._ended = Lock()
        self._ended.acquire()

    def start(self) -> None:
        """Start the coroutine."""
        self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        if not self._is_over:  # not cancelled before the start
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[Any] | None) -> None:
        if task is not None and not task.cancelled():
            task.exception()  # otherwise asyncio would log an error that is never retrieved
        self._on_end(self)
        self._is_over = True
        self._ended.release()

    def cancel(self) -> None:
        """Cancel the coroutine, from any thread."""
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        elif not self._is_over:
            self._work.close()
            self._end(None)

    def stop(self) -> None:
        """Cancel the coroutine, and wait until it has ended."""
        if not self._is_over:
            self.cancel()
            self._wait()

    def _wait(self) -> None:
        if not self._is_over:
            with self._ended:
                pass

    def result(self) -> Any:
        """Wait for the coroutine; return its result, or raise its error or `CancelledError`."""
        self._wait()
        try:
            if self._task is None or self._task.cancelled():
                raise CancelledError
            return self._task.result()
        finally:
            del self  # breaks a cycle: the task has the error, whose traceback has this frame


class Access:
    """A store and its request settings.

    Parameters
    ----------
    store : object
        See the docstring of the module.
    concurrency : int, optional
        Maximum number of requests at a time; by default 16, or 64 small ones, whose time is mostly latency.
    deadline : float
        Time limit of a request in seconds; each MiB adds one second.
    unversioned : bool
        Whether to read objects without ETag and modification time.
    """

    concurrency: int
    small: int

    def __init__(self, store: Any, concurrency: int | None, deadline: float, *, unversioned: bool = False) -> None:
        self.store = store
        self.requested_concurrency = concurrency
        self.concurrency, self.small = (CONCURRENCY, SMALL_CONCURRENCY) if concurrency is None else (concurrency,) * 2
        self.deadline = deadline
        self.unversioned = unversioned
        self._slots: tuple[Any, tuple[asyncio.Semaphore, asyncio.Semaphore]] | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._under_way: set[Call] = set()
        self._is_cancelled = False

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Access, unversioned=self.unversioned), (self.store, self.requested_concurrency, self.deadline)

    def max_requests(self, nbytes: int) -> int:
        """Return how many requests of this size may run at a time."""
        return self.small if nbytes <= _MAX_SMALL_BYTES else self.concurrency

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Wait for a coroutine. An interrupt ends it first."""
        call = self._call(work)
        try:
            self._start(call)
            return call.result()
        except BaseException:
            call.stop()
            raise
        finally:
            del call  # as in `Call.result`

    def submit(self, work: Coroutine[Any, Any, Any]) -> Call:
        """Start a coroutine."""
        call = self._call(work)
        try:
            self._start(call)
        except BaseException:
            call.stop()
            raise
        return call

    def _call(self, work: Coroutine[Any, Any, Any]) -> Call:
        """Return the call of a coroutine, not started yet. Raises `RemoteError` if the loop's thread cannot start."""
        try:
            return Call(work, _loop.instance.started(), self._under_way.discard)
        except RuntimeError as error:
            work.close()
            raise RemoteError(f"no request can be made: {error}") from None

    def _start(self, call: Call) -> None:
        self._under_way.add(call)
        call.start()
        if self._is_cancelled:
            call.cancel()

    def cancel(self) -> None:
        """Cancel all calls, including later ones: threads that wait for them get a `CancelledError`."""
        self._is_cancelled = True
        for call in list(self._under_way):
            call.cancel()

    async def call(self, function: Any, *arguments: Any, **options: Any) -> Any:
        """Call a blocking function in a thread."""
        self._slot(0)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.small, "weightmap-remote")
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments, **options))

    def _slot(self, nbytes: int) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._slots is None or self._slots[0] is not loop:  # a forked child has another loop
            large = asyncio.Semaphore(self.concurrency)
            small = large if self.small == self.concurrency else asyncio.Semaphore(self.small)
            self._slots, self._threads = (loop, (large, small)), None
        return self._slots[1][nbytes <= _MAX_SMALL_BYTES]

    @contextlib.asynccontextmanager
    async def _try(self, nbytes: int = 0) -> AsyncIterator[None]:
        """Give a request a deadline that grows with its bytes; raise a store's errors as `StoreError`."""
        try:
            async with asyncio.timeout(self.deadline + nbytes / SLOWEST):
                yield
        except Exception as error:  # noqa: BLE001 - raised again, or as a StoreError
            fault = _fault_of(error)
            raise error if fault is None else fault from None

    async def fetch(self, key: str, begin: int, end: int, target: memoryview | Pieces, pin: Pin | None) -> Pin:
        """Fill memory with the bytes from `begin` to `end` of an object, or to its end; return the object's state.

        After a broken connection, only the missing bytes are requested. Raises `StoreError`.
        """
        failed, at = 0, begin
        while True:
            attempt = _Attempt(begin, at, end, target, pin)
            try:
                async with self._slot(end - at), self._try(end - at):
                    await self._get(key, attempt)
            except StoreError as fault:
                if fault.kind != "again":
                    raise
                if attempt.pin is not None and attempt.done == attempt.end:  # all bytes came before the deadline
                    return attempt.pin
                after = fault.after
                failed = failed + 1 if attempt.done - at < _PROGRESS else 1
                if failed >= ATTEMPTS:
                    words = f"{fault.words} ({ATTEMPTS} attempts)"
                    raise StoreError("again", words, remedy=fault.remedy) from None
            else:
                assert attempt.pin is not None  # noqa: S101 - the answer set it
                return attempt.pin
            finally:
                attempt.give_up()
            at, pin = attempt.done, attempt.pin
            await asyncio.sleep(pause(failed, after))

    def _has(self, method: str) -> bool:
        return hasattr(self.store, f"{method}_async") or hasattr(self.store, method)

    async def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call an asynchronous method of the store, or its blocking method in a thread."""
        function = getattr(self.store, f"{method}_async", None)
        if function is not None:
            return await function(*arguments, **options)
        return await self.call(getattr(self.store, method), *arguments, **options)

    async def _get(self, key: str, attempt: _Attempt) -> None:
        get = getattr(self.store, "get_async", None)
        if get is None:
            await self.call(self._get_blocking, key, attempt.options, attempt.read)
            return
        answer = await get(key, options=attempt.options)
        attempt.check_head(answer)
        async for chunk in answer.stream(min_chunk_size=_CHUNK):
            attempt.take(chunk)
        attempt.finish()

    def _get_blocking(self, key: str, options: dict[str, Any], use: Callable[[Any], Any]) -> Any:
        """Return the result of `use` for an answer, and close the answer, even after the deadline."""
        answer = self.store.get(key, options=options)
        try:
            return use(answer)
        finally:
            close = getattr(answer, "close", None)
            if close is not None:
                close()

    async def look(self, key: str) -> Pin:
        """Return the state of a perhaps empty object. Raises `StoreError`."""
        options, get = {"head": True}, getattr(self.store, "get_async", None)
        async with self._try():
            if get is None:
                return await self.call(self._get_blocking, key, options, lambda answer: Pin.of(answer.meta))  # type: ignore[no-any-return]
            return Pin.of((await get(key, options=options)).meta)

    @property
    def takes_objects(self) -> bool:
        """Whether the store has a method that writes."""
        return self._has("put")

    async def remove(self, key: str, tag: str | None) -> None:
        """Remove an object, if the store can, and if the object has this tag. Raises `StoreError`."""
        failed = 0
        while self._has("delete"):
            try:
                if tag is None or (await self.look(key)).etag == tag:
                    async with self._try():
                        await self._ask("delete", key)
            except StoreError as fault:
                failed += 1
                if fault.kind != "again" or failed == ATTEMPTS:
                    raise
                await asyncio.sleep(pause(failed, fault.after))
            else:
                return

    async def put(self, key: str, path: str, size: int, *, new: bool) -> str | None:
        """Write a file of this size as an object, with `new` only if the object does not exist; return its tag.

        obstore writes a large object in parts, without a condition: for a large `new` object, an earlier request checks
        whether it exists. Raises `StoreError`.
        """
        if not self.takes_objects:
            raise StoreError("refused", "this store is read-only")
        options: dict[str, Any] = {"mode": "create"} if new and size <= _MAX_WHOLE_BYTES else {}
        if size > _MAX_PARTS * _PART_BYTES:  # an upload has at most 10,000 parts, and obstore's parts have 5 MiB
            options["chunk_size"] = -(-size // _MAX_PARTS)
        if new and "mode" not in options and await self._exists(key):
            raise StoreError("exists", _KINDS["AlreadyExistsError"][1])
        failed = 0
        while True:
            try:
                async with self._try(size):
                    result = await self._ask("put", key, Path(path), **options)
            except StoreError as fault:
                if fault.kind in {"exists", "changed"} and failed and await self._holds(key, path, size):
                    return (await self.look(key)).etag  # the object is ours: the answer to an earlier attempt was lost
                failed += 1
                if fault.kind != "again" or failed == ATTEMPTS:
                    raise
                await asyncio.sleep(pause(failed, fault.after))
            else:
                return (result or {}).get("e_tag")

    async def _exists(self, key: str) -> bool:
        try:
            await self.look(key)
        except StoreError as fault:
            if fault.kind != "missing":
                raise
            return False
        return True

    async def _holds(self, key: str, path: str, size: int) -> bool:
        """Whether an object has the bytes of a file."""
        content = bytearray(size)
        try:
            pin = await self.fetch(key, 0, size, memoryview(content), None)
        except StoreError:
            return False
        return pin.size == size and await self.call(Path(path).read_bytes) == content

    async def names(self, prefix: str) -> Iterable[str] | None:
        """Return the names directly below a prefix, folders with a slash; None if the store cannot list."""
        if not self._has("list_with_delimiter"):
            return None
        async with self._try():
            listed = await self._ask("list_with_delimiter", prefix)
        folders = [path.rstrip("/").rpartition("/")[2] + "/" for path in listed["common_prefixes"]]
        return [entry["path"].rpartition("/")[2] for entry in listed["objects"]] + folders


class _Loop:
    """The event loop of the process, which the first request starts."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def started(self) -> asyncio.AbstractEventLoop:
        """Return the running loop. Raises RuntimeError if the system starts no thread."""
        with self._lock:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = Thread(target=loop.run_forever, name="weightmap-remote", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    loop.close()
                    raise
                self._loop = loop
                atexit.register(_end, loop, thread)
            return self._loop


def _end(loop: asyncio.AbstractEventLoop, thread: Thread) -> None:
    """Wait, at the end of the process, until no thread of a store is returning to Python.

    obstore's threads call into the loop. Python 3.11 to 3.13 end a thread that enters Python while the interpreter
    ends, and Rust then raises SIGABRT: a process whose work is done would return -6.
    """
    if not thread.is_alive():  # a forked child has no such thread
        return
    until = time.monotonic() + _LAST_WAIT
    with contextlib.suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(_cancel_all(), loop).result(_LAST_WAIT)
    while time.monotonic() < until and _calling():
        time.sleep(0.001)


async def _cancel_all() -> None:
    """Cancel the loop's tasks, and wait for them."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _calling() -> bool:
    """Whether a foreign thread is handing a result to the loop."""
    for frame in sys._current_frames().values():  # noqa: SLF001 - documented, in spite of its name
        outermost = frame
        while outermost.f_back is not None:
            outermost = outermost.f_back
        if outermost.f_code.co_name == "call_soon_threadsafe":
            return True
    return False


_loop = PerProcess(_Loop)
