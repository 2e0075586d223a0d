"""SGLang's receiver and ours, in turns on one directory: its record and its lock, files that it writes in place."""

import json
import shutil
import sys

import pytest
from tests.deltas import sglang_receiver as sglang
from tests.deltas.delta_files import digests, model, stepped, write_delta, write_model

import weightmap as wm
from weightmap import deltas
from weightmap.deltas import local as places

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="flock, and files asked for who has them open")

FULL = {4: 1, 6: 2}  # full versions, with their number of files
LAST = 9


@pytest.fixture
def chain(tmp_path):
    """A base in two files and its versions: deltas of both encodings and all checksums, two full ones."""
    states = [{name: value for name, value in model().items() if name != "empty"}]
    for number in range(1, LAST + 1):
        states.append(stepped(states[-1], number))

    def parts(state, count):
        names = list(state)
        return [{name: state[name] for name in names[i::count]} for i in range(count)]

    base, source = write_model(tmp_path / "base", *parts(states[0], 2)), tmp_path / "source"
    for number in range(1, LAST + 1):
        if number in FULL:
            write_model(source / f"weight_v{number:06}", *parts(states[number], FULL[number]))
        else:
            how = {
                "encoding": ("xor", "overwrite")[number % 2],
                "checksum": ("xxh3-128", "blake3", "adler32")[number % 3],
            }
            write_delta(source, number, states[number - 1], states[number], files=2, **how)
    return base, source, [digests(state) for state in states]


def recorded(folder):
    return int(json.loads((folder / ".weight_sync" / "state.json").read_text())["version"])


WAYS = {
    "beside": lambda local, source, number, base: deltas.pull(local, source, version=number, base=base),
    "in place": lambda local, source, number, base: deltas.pull(
        local, source, version=number, base=base, in_place=True
    ),
    "applied": lambda local, source, number, base: (
        deltas.apply(local, source / f"weight_v{number:06}")
        if number not in FULL
        else deltas.pull(local, source, version=number, base=base)
    ),
}


@pytest.mark.parametrize("ours", WAYS)
@pytest.mark.parametrize("first", [0, 1])
def test_version_by_version(chain, tmp_path, ours, first):
    """Each continues from any version that the other has recorded: files and record agree."""
    base, source, states = chain
    local = tmp_path / "local"
    (sglang.pull if first else WAYS["beside"])(local, source, 0, base)
    for number in range(1, LAST + 1):
        turn = WAYS[ours] if number % 2 == first else sglang.pull
        turn(local, source, number, base)
        assert recorded(local) == number
        assert digests(wm.load(local)) == states[number]
        names = {path.name for path in local.glob("*.safetensors")}
        assert len(names) == (2 if number < 4 or number >= 6 else 1)


class Stopped(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("way", [(0, 1), (2, 3), (3, 4), (5, 6), (7, 9)])
def test_ours_stops_and_it_goes_on(chain, tmp_path, monkeypatch, way, in_place):
    """At every step: no tensor is in two files beside a record, and nothing continues a version without a record."""
    base, source, states = chain
    begin, target = way
    number, reached = 0, False
    while not reached:
        number += 1
        local, left = tmp_path / f"local{number}", number
        deltas.pull(local, source, version=begin, base=base)

        def stop(name):
            nonlocal left
            left -= 1
            if not left:
                raise Stopped(name)

        with monkeypatch.context() as patch:
            patch.setattr(places, "step", stop)
            patch.setattr(places.Local, "abandon", lambda _: None)
            patch.setattr(places.access, "cpus", lambda: 1)
            try:
                deltas.pull(local, source, version=target, base=base, in_place=in_place)
                reached = True
            except Stopped:
                pass
        # The version after the present record, or after the base; in place if it is a delta.
        following = min(target + 1, LAST)
        sglang.pull(local, source, following, base)
        assert (recorded(local), digests(wm.load(local))) == (following, states[following])
        following = min(target + 2, LAST)
        deltas.pull(local, source, version=following, base=base)
        assert (recorded(local), digests(wm.load(local))) == (following, states[following])
        shutil.rmtree(local)
    assert number > 6


@pytest.mark.parametrize("in_place", [False, True])
def test_it_stops_and_ours_goes_on(chain, tmp_path, in_place):
    """Torn files beside its record are refused, and nothing changes; a full version or the base mends them."""
    base, source, states = chain
    local = tmp_path / "local"
    deltas.pull(local, source, version=1, base=base)
    with pytest.raises(InterruptedError):
        sglang.pull(local, source, 2, base, torn=True)
    torn = {path.name: path.read_bytes() for path in local.iterdir() if path.is_file()}
    with pytest.raises(wm.DeltaError, match="of the result"):
        deltas.pull(local, source, version=2, in_place=in_place)
    assert {path.name: path.read_bytes() for path in local.iterdir() if path.is_file()} == torn
    other = shutil.copytree(local, tmp_path / "other")
    deltas.pull(local, source, version=5, in_place=in_place)  # on the way lies a full version
    assert (recorded(local), digests(wm.load(local))) == (5, states[5])
    (other / ".weight_sync" / "state.json").unlink()
    deltas.pull(other, source, version=2, base=base, in_place=in_place)
    assert (recorded(other), digests(wm.load(other))) == (2, states[2])
