"""What `ReadPlan.explain` says: each number, and each piece of advice where it is due."""

import json
import os
import re
import shlex
import sys

import numpy as np
import pytest
from tests.builders import Tensor, embd
from tests.builders import safetensors as safe

import weightmap as wm
from weightmap.cli import main
from weightmap.io import pages
from weightmap.io.memory import ControlGroup, Headroom
from weightmap.io.pages import Sample
from weightmap.native import files
from weightmap.plans import explaining, read_plan

MIB, GIB = 1 << 20, 1 << 30
PLENTY = Headroom(64 * GIB, ())


@pytest.fixture
def path(tmp_path):
    """Return a model of 16 MiB whose tensors do not begin at multiples of 64."""
    target = tmp_path / "m.safetensors"
    target.write_bytes(safe.build({f"t{i}": Tensor("uint8", (4 * MIB,), bytes(4 * MIB)) for i in range(4)}))
    return target


def explained(path, monkeypatch, *, cold=0.0, told=True, large=1.0, left=PLENTY, number=61267, **options):
    def cold_in(_, reads):
        sizes = reads[2] - reads[1]
        return (sizes * cold).astype(np.int64), told

    def sampled(_, begin, end):
        return None if large is None else Sample(end - begin, int((end - begin) * large), 0.001)

    monkeypatch.setattr(explaining, "cold_in", cold_in)
    monkeypatch.setattr(explaining, "sample", sampled)
    monkeypatch.setattr(explaining, "headroom", lambda: left)
    monkeypatch.setattr(read_plan, "headroom", lambda: left)
    monkeypatch.setattr(files, "file_system", lambda _: number)
    with wm.plan(path, **options) as plan:
        return plan.explain()


def test_a_report_has_the_numbers_of_its_plan(path, monkeypatch):
    report = explained(path, monkeypatch)
    assert report[:5] == (str(path), 4, 1, 16 * MIB, 16 * MIB)
    assert report.places == (("ext4", "local", "map", 1, 16 * MIB),)
    assert (report.cold, report.faults, report.large_pages) == (0, 8, 1.0)
    assert report.seconds == pytest.approx(0.001)
    assert (report.misaligned, report.misaligned_nbytes) == (4, 16 * MIB)
    assert report.budget == 64 * GIB
    document = json.loads(json.dumps(report.as_dict()))
    assert document["places"] == [
        {"file_system": "ext4", "kind": "local", "how": "map", "files": 1, "nbytes": 16 * MIB}
    ]
    assert document["memory"] == {"available": 64 * GIB, "groups": [], "left": 64 * GIB}
    assert document["faults"] == 8
    text = str(report)
    for words in (
        "1 read, 16.0 MiB",
        "ext4",
        "mapped",
        "16.0 MiB of 16.0 MiB (100%)",
        "about 8 page faults",
        "64.0 GiB",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"cold": 0.5}, "8.0 MiB come from the disk at the first touch: `weightmap warm`"),
        ({"number": 0x6969}, r"16.0 MiB lie on nfs, where a lost connection ends a process"),
        ({"left": Headroom(MIB, ())}, "16.0 MiB are more than the 1.0 MiB that are available"),
        (
            {"left": Headroom(GIB, (ControlGroup("/g", 2, 9 * MIB, 8 * MIB, 7 * MIB),))},
            "16.0 MiB are more than the 8.0 MiB that the control group leaves",
        ),
        ({"budget": 2 * MIB}, "16.0 MiB are more than the 2.0 MiB that this plan may fill"),
        (
            {"large": 0.25},
            r"small pages .25% of 16.0 MiB in pages of 2 MiB.*: `weightmap convert \S+ \S+/m.new.safetensors`",
        ),
    ],
    ids=["cold", "network", "memory", "control group", "budget", "small pages"],
)
def test_advice_comes_where_it_is_due(machine, words, path, monkeypatch):
    """Each trouble brings one piece of advice, with numbers; without it there is none but that about alignment."""
    (alignment,) = explained(path, monkeypatch).advice
    assert "jax copies 4 misaligned tensors (16.0 MiB), numpy and torch do not" in alignment
    assert alignment.endswith("/m.new.safetensors --align 64` is the cure")
    report = explained(path, monkeypatch, **machine)
    (advice,) = [line for line in report.advice if line != alignment]
    assert re.search(words, advice)
    assert f"-> {advice}" in str(report)


def test_a_file_that_is_nearly_all_in_memory_has_a_sample(path, monkeypatch):
    """The sample is the longest run of pieces that are there, whatever else the system has taken."""
    sampled = []

    def cold_in(_, reads):
        cold = np.zeros(len(reads[0]), np.int64)
        cold[0] = 4096
        return cold, True

    def sample(_, begin, end):
        sampled.append((begin, end))
        return Sample(end - begin, 0, 0.001)

    monkeypatch.setattr(explaining, "cold_in", cold_in)
    monkeypatch.setattr(explaining, "sample", sample)
    with wm.plan(path) as plan:
        assert plan.explain().large_pages == 0
    assert sampled == [(8 * MIB, path.stat().st_size)]


def test_what_the_system_does_not_say_is_not_guessed(path, monkeypatch):
    """Without residency there is no number of cold bytes and no sample; without memory no budget."""
    report = explained(path, monkeypatch, told=False, cold=1.0, left=Headroom(None, ()))
    assert (report.cold, report.faults, report.budget) == (None, None, None)
    assert "the system does not say" in str(report)
    assert "available" not in str(report)
    report = explained(path, monkeypatch, large=None)
    assert report.faults is None
    assert "page fault" not in str(report)


def test_an_aligned_file_is_said_to_be(tmp_path, monkeypatch):
    path = tmp_path / "m.weights"
    path.write_bytes(embd.Draft([("a", Tensor("uint8", (100,), bytes(100)))]).seal())
    report = explained(path, monkeypatch)
    assert (report.misaligned, report.faults, report.advice) == (0, None, ())
    assert "every array begins at a multiple of 64 bytes" in str(report)


ODD = {"a": np.ones(3, np.uint8), "w": np.ones((8, 32), np.float32), "v": np.ones(3, np.float32)}
MIXED = {name: array for name, array in ODD.items() if name != "a"}
MODELS = {
    "o dd.safetensors": (ODD, {"metadata": {"k": "v"}}, 3, "o dd.new.safetensors"),
    "odd.bt": (ODD, {}, 3, "odd.new.bt"),
    "odd.gguf": (MIXED | {"q": wm.quantize(ODD["w"], "q4_0")}, {}, 2, "odd.new.gguf"),
    "dense.amb": (MIXED, {}, 2, "dense.new.safetensors"),
    "words.fifu": ({"embeddings": ODD["w"]}, {"vocab": list("abcdefgh")}, 1, "words.new.weights"),
    # jax takes no quantised tensors, and no format with alignment holds those of AMB.
    "quantised.amb": ({"q": wm.quantize(ODD["w"], "int8")}, {}, 0, None),
    "mixed.amb": (MIXED | {"q": wm.quantize(ODD["w"], "adaptive")}, {}, 2, None),
}


@pytest.mark.parametrize("name", MODELS)
def test_advice_on_alignment_can_be_followed(tmp_path, capsys, monkeypatch, name):
    """Only arrays that jax would share count; the command names the file, holds all of it, and works as it stands."""
    monkeypatch.chdir(tmp_path)
    tensors, options, misaligned, target = MODELS[name]
    wm.save(name, tensors, **options)
    report = wm.plan(name).explain()
    assert report.misaligned <= misaligned  # where a header happens to be a multiple
    assert (report.misaligned > 0) == (misaligned > 0)
    commands = re.findall("`(weightmap convert .* --align 64)`", str(report))
    assert len(commands) == (target is not None)
    for command in commands:
        assert main(shlex.split(command)[1:]) == 0
        assert "left behind" not in capsys.readouterr().out
        assert wm.plan(target).explain().misaligned <= 2
        assert wm.diff(name, target, tensors_only=True).equal


@pytest.mark.parametrize(("most", "name"), [(None, "hf/model.safetensors"), (130, "hf/model.safetensors.index.json")])
def test_advice_keeps_a_directory_whole(tmp_path, monkeypatch, most, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hf").mkdir()
    wm.save("hf/model.safetensors", ODD, metadata={"format": "pt"}, max_shard_size=most)
    (tmp_path / "hf" / "config.json").write_text("{}")
    (command,) = re.findall("`(weightmap convert .* --align 64)`", str(wm.plan("hf").explain()))
    assert command == f"weightmap convert {name} hf.new/ --align 64"
    assert main(shlex.split(command)[1:]) == 0
    assert wm.diff("hf", "hf.new").equal
    assert (tmp_path / "hf.new" / "config.json").read_text() == "{}"


def test_gaps_that_are_read_are_counted(path, monkeypatch):
    """Bytes between the wanted ones that are read for nothing are in the text."""
    options = {"wants": {"t0": np.s_[:100], "t1": np.s_[:100]}, "gap": 5 * MIB, "max_over_read": 1e9}
    report = explained(path, monkeypatch, **options)
    assert report.wanted_nbytes == 200
    assert "1 read, 4.0 MiB, 4.0 MiB of them in gaps" in str(report)


def test_a_plan_of_nothing_can_be_explained():
    """A model without tensors is in memory as a whole."""
    with wm.open(memoryview(safe.build({}))) as f:
        report = wm.plan(f).explain()
    assert (report.cold, report.places, report.advice) == (0, (), ())
    assert "0 bytes of 0 bytes (100%)" in str(report)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's words about mappings are Linux's")
def test_a_sample_says_how_pages_are_mapped(path, monkeypatch):
    with wm.open(path) as f:
        source = f._source
        found = pages.sample(source, 0, f.nbytes)
        assert found.mapped >= f.nbytes
        assert 0 <= found.large <= found.mapped
        assert found.seconds > 0
        assert pages.sample(source, 5, 5) is None
        os.truncate(path, MIB)
        assert pages.sample(source, 0, 16 * MIB) is None
        monkeypatch.setattr(pages, "map_file", lambda *_: (_ for _ in ()).throw(OSError(19, "no such device")))
        assert pages.sample(source, 0, MIB) is None
    with wm.open(memoryview(safe.build({}))) as f:
        assert pages.sample(f._source, 0, 4) is None
