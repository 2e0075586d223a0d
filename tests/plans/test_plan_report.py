"""`ReadPlan.explain`: each number, and each piece of advice where it is due."""

import json
import re

import numpy as np
import pytest
from tests.builders import Tensor, examples
from tests.builders import safetensors as safe

import weightmap as wm
from weightmap.conversion.converting import losses
from weightmap.core.bytes.memory import ControlGroup, Headroom
from weightmap.core.native import files
from weightmap.plans import explaining, planning
from weightmap.plans.pages import Sample

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

    def sampled(_, part):
        return None if large is None else Sample(part.nbytes, int(part.nbytes * large), 0.001)

    monkeypatch.setattr(explaining, "cold_in", cold_in)
    monkeypatch.setattr(explaining, "sample", sampled)
    monkeypatch.setattr(explaining, "headroom", lambda: left)
    monkeypatch.setattr(planning, "headroom", lambda: left)
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
    whole = "16.0 MiB of 16.0 MiB (100%)"
    for words in ("1 read, 16.0 MiB", "ext4", "mapped", whole, "about 8 page faults", "64.0 GiB"):
        assert words in text


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"cold": 0.5}, "8.0 MiB come from the disk at the first touch: `weightmap cache warm`"),
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
    assert ("plan." in advice) is ("in Python" in advice)
    assert f"-> {advice}" in str(report)


@pytest.mark.parametrize("align", [1, 64])
def test_the_own_format_is_advised_where_it_loses_nothing(align):
    """Without a trial; if our format cannot hold all tensors, another format that can is advised, if there is one."""
    own = 0
    for example in examples():
        with wm.open(example.data) as f:
            target = explaining._holding(f, align)
            assert target is None or losses(f, target, align) == 0 or target.name != f.format
            own += target is not None and target.name == f.format
    assert own > 30


def test_nothing_is_tried_for_the_own_format(path, monkeypatch):
    monkeypatch.delattr("weightmap.conversion.converting.losses")
    assert explained(path, monkeypatch).advice
