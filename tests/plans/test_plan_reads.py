"""The reads of a plan, compared with a plain definition byte by byte, over random models, wants and rules."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.builders import embd, normal, onnx
from tests.builders import safetensors as safe

import weightmap as wm

DTYPES = ("float32", "float16", "uint8", "int64", "bfloat16")

shapes = st.lists(st.integers(0, 6), max_size=3).map(tuple)


@st.composite
def models(draw):
    """Return a file: of safetensors, without gaps, or of EMBD, with padding between tensors."""
    count = draw(st.integers(1, 6))
    plain = draw(st.booleans())
    tensors = {}
    for i in range(count):
        shape = draw(shapes if plain else st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple))
        tensors[f"t{i}"] = builders.noise(draw(st.sampled_from(DTYPES[: 5 if plain else 3])), shape, i)
    if plain:
        return safe.build(tensors)
    return embd.Draft(list(tensors.items())).seal()


def slices(size):
    """Return slices of an axis, empty, reversed and stepping ones among them."""
    bound = st.none() | st.integers(-size - 2, size + 2)
    return st.builds(slice, bound, bound, st.none() | st.integers(-3, 3).filter(bool))


@st.composite
def indices(draw, shape):
    parts = [
        draw(slices(size) | (st.integers(-size, size - 1) if size else slices(size)))
        for size in shape[: draw(st.integers(0, len(shape)))]
    ]
    if draw(st.booleans()):
        parts.append(Ellipsis)
    return tuple(parts)


rules = st.fixed_dictionaries(
    {"gap": st.sampled_from((0, 1, 5, 40, 64, 1 << 16)), "max_over_read": st.sampled_from((1.0, 1.1, 1.5, 4.0, 1e9))}
)


def bytes_of(info, width, key):
    """Return the numbers of the bytes of the file that hold the part of a dense tensor."""
    places = np.arange(math.prod(info.shape) * width).reshape(*info.shape, width)
    chosen = places[key] if isinstance(key, tuple) and Ellipsis in key else places[(*key, ...)]
    return (info.offset + chosen.reshape(-1)).tolist()


def runs(places):
    ordered = sorted(places)
    for _, group in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        run = [place for _, place in group]
        yield run[0], run[-1] + 1


def reads_of(places, gap, most):
    found = []
    for begin, end in runs(places):
        if found:
            first, last, count = found[-1]
            if begin - last < gap and end - first <= most * (count + end - begin):
                found[-1] = [first, end, count + end - begin]
                continue
        found.append([begin, end, end - begin])
    return [(first, last - first) for first, last, _ in found]


def check(plan, places, gap, max_over_read):
    assert [read[1:] for read in plan.reads] == reads_of(places, gap, max_over_read)
    assert plan.wanted_nbytes == len(places)
    assert plan.nbytes == sum(nbytes for _, _, nbytes in plan.reads)
    assert plan.nbytes <= max_over_read * plan.wanted_nbytes
    ends = [0]
    for _, offset, nbytes in plan.reads:
        assert ends[-1] <= offset
        assert nbytes > 0
        ends.append(offset + nbytes)
    assert ends[-1] <= plan.file.nbytes


@given(models(), rules, st.data())
def test_reads_are_those_of_the_definition(data, how, draw):
    with wm.open(memoryview(data)) as f:
        infos = {info.name: info for info in f.infos()}
        widths = {name: f[name].itemsize for name in f}
        names = draw.draw(st.lists(st.sampled_from(sorted(infos)), unique=True))
        wants = {name: draw.draw(indices(infos[name].shape)) for name in names}
        places = {place for name, key in wants.items() for place in bytes_of(infos[name], widths[name], key)}
        check(wm.plan(f, wants, **how), places, **how)
        whole = {place for name in names for place in bytes_of(infos[name], widths[name], ())}
        check(wm.plan(f, names, **how), whole, **how)
        check(wm.plan(f, lambda info: info.name in names, **how), whole, **how)
        assert sorted(wm.plan(f, names).names) == sorted(wm.plan(f, wants).names) == sorted(names)


def spoil(f, data, plan):
    octets = np.frombuffer(data, np.uint8).copy()
    kept = [(offset, octets[offset : offset + nbytes].copy()) for _, offset, nbytes in plan.reads]
    for info in map(f.info, plan.names):
        octets[info.offset : info.offset + info.nbytes] ^= 0xFF
    for offset, part in kept:
        octets[offset : offset + len(part)] = part
    return octets.tobytes()


@given(models(), st.integers(1, 9), rules)
def test_ranks_share_the_work(data, world, how):
    """Every tensor is dealt to one rank, every byte once, and no rank gets more than its part and one tensor."""
    with wm.open(memoryview(data)) as f:
        plans = [wm.plan(f, rank=rank, world_size=world, **how) for rank in range(world)]
        assert sum((plan.names for plan in plans), ()) == wm.plan(f).names
        total = wm.plan(f).wanted_nbytes
        assert sum(plan.wanted_nbytes for plan in plans) == total
        largest = max((info.nbytes for info in f.infos()), default=0)
        assert all(plan.wanted_nbytes <= total / world + largest for plan in plans)
        covered = [place for plan in plans for _, start, n in plan.reads for place in range(start, start + n)]
        if how["gap"] == 0:
            assert len(covered) == len(set(covered)) == total


QUANTISED = [(scheme, block) for scheme in ("int4_block", "int5_block", "adaptive") for block in (8, 32)]
QUANTISED += [("int8", 32), ("int4", 32), ("int5", 32)]
# Elements in a row, with and without a partial block.
ROWS = ((7, 24), (5, 64), (40, 3), (3, 4, 20), (17,))


def quantised(path, scheme, block, shape):
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    options = {"block_size": block} if scheme not in ("int8", "int4", "int5") else {}
    if scheme == "adaptive":
        options["bits"] = 9.0
    wm.save(path, {name: wm.quantize(values * k, scheme, **options) for k, name in enumerate("ab", 1)}, format="amb")
    return path


@pytest.mark.parametrize("shape", ROWS, ids=str)
@pytest.mark.parametrize(("scheme", "block"), QUANTISED)
def test_rows_of_quantised_tensors_are_whole_blocks(scheme, block, shape, tmp_path):
    path = quantised(tmp_path / "m.amb", scheme, block, shape)
    data, width = path.read_bytes(), math.prod(shape[1:])
    with wm.open(path) as f:
        for key in (0, -1, np.s_[1:3], np.s_[2:2], np.s_[::3], ..., np.s_[0:2, ...], np.s_[::-2]):
            plan = wm.plan(f, {"b": key}, gap=0)
            with wm.open(memoryview(spoil(f, data, plan))) as other:
                assert np.array_equal(other["b"][key], f["b"][key], equal_nan=True), key
        row = wm.plan(f, {"b": 1}, gap=0).nbytes
        q = f["b"]
        blocks = -(-width // q.block_size) + 1 if q.block_size else 1
        each = 4 + 2 * q.block_size if q.block_size else 4 + width + 1
        assert row <= 4 + 4 + -(-q.n_blocks // 4) + blocks * each
        assert wm.plan(f, {"b": None}).nbytes == wm.plan(f, ["b"]).nbytes == f.info("b").nbytes


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_shards_are_those_of_torch_chunk(dim, world):
    """Along a dimension every rank has ceil(size / world) elements, the last ones the rest, and all have all."""
    array = np.arange(10 * 7).reshape(10, 7)
    parts = [array[wm.shard(array, dim, rank, world)] for rank in range(world)]
    assert np.array_equal(np.concatenate(parts, dim), array)
    step = -(-array.shape[dim] // world)
    assert [part.shape[dim] for part in parts] == [
        max(min(step, array.shape[dim] - step * rank), 0) for rank in range(world)
    ]


def test_a_shard_by_name_is_completed_by_the_plan(tmp_path):
    """By name, info or array it is the same slice; without a tensor it is a slice of every tensor."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(safe.build({"a": normal((8, 6)), "b": normal((4,), 1), "c": normal((), 2)}))
    with wm.open(path) as f:
        by_name = wm.plan(f, {"a": wm.shard("a", 1, 1, 2)}).reads
        assert (
            by_name == wm.plan(f, {"a": wm.shard(f.info("a"), 1, 1, 2)}).reads == wm.plan(f, {"a": np.s_[:, 3:]}).reads
        )
        every = wm.plan(f, wm.shard("", 0, 1, 2), gap=0)
        assert every.names == ("a", "b", "c")
        assert every.wanted_nbytes == 4 * (4 * 6 + 2 + 1)


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (safe.raw(json.dumps({"w": safe.entry("F4", [4, 8], 0, 16)}).encode(), bytes(range(16))), "float4_e2m1fn"),
        (
            onnx.model(
                [
                    onnx.field(1, 4)
                    + onnx.field(1, 8)
                    + onnx.field(2, 22)
                    + onnx.field(8, b"w")
                    + onnx.field(9, bytes(range(16)))
                ]
            ),
            "int4",
        ),
    ],
    ids=["float4", "int4"],
)
def test_shards_of_packed_elements_divide_the_bytes_of_the_array(data, dtype):
    """By an info, too: indices of its rows of elements would read only a few bytes."""
    with wm.open(data) as f:
        info = f.info("w")
        assert (info.dtype, info.shape) == (dtype, (4, 8))
        ranks = [wm.shard(info, 0, rank, 2) for rank in (0, 1)]
        assert ranks == [wm.shard(f["w"], 0, rank, 2) for rank in (0, 1)]
        parts = [dict(wm.plan(f, {"w": index}).run("read"))["w"].tolist() for index in ranks]
        assert parts == [[*range(8)], [*range(8, 16)]]
        with pytest.raises(wm.PlanError, match="dim of a shard of tensor 'w' is 1, expected one of 1 dimensions"):
            wm.shard(info, 1, 0, 2)


@given(models(), st.integers(-3, 3), st.integers(1, 5), st.data())
def test_a_slice_of_every_tensor_is_that_of_each(data, dim, world, draw):
    rank = draw.draw(st.integers(0, world - 1))
    with wm.open(memoryview(data)) as f:
        part = wm.shard("", dim, rank, world)
        each = {info.name: part if -len(info.shape) <= dim < len(info.shape) else None for info in f.infos()}
        plan = wm.plan(f, part)
        assert plan.reads == wm.plan(f, each).reads
        for way in ("map", "read"):
            for name, array in plan.run(way):
                expected = f[name] if each[name] is None else f[name][part.of(f.info(name).shape)]
                assert (array.shape, array.tobytes()) == (expected.shape, expected.tobytes())


@pytest.fixture
def path(tmp_path):
    target = tmp_path / "m.safetensors"
    target.write_bytes(safe.build({"a": normal((8, 6)), "b": normal((3,), 1)}))
    return target


@pytest.mark.parametrize(
    ("wants", "error", "message"),
    [
        (["a", "absent"], wm.TensorNotFoundError, "no tensor is called 'absent'"),
        ({"absent": 0}, wm.TensorNotFoundError, "no tensor is called 'absent'"),
        ({"a": 8}, wm.PlanError, "index of tensor 'a' on axis 0 is 8, expected -8 to 7"),
        ({"a": (0, -7)}, wm.PlanError, "on axis 1 is -7, expected -6 to 5"),
        ({"a": (0, 0, 0)}, wm.PlanError, "expected one for 2 dimensions"),
        ({"a": (..., ...)}, wm.PlanError, "expected one for 2 dimensions"),
        ({"a": [1, 2]}, wm.PlanError, "expected integers, slices and an ellipsis"),
        ({"a": np.arange(2)}, wm.PlanError, "expected integers, slices and an ellipsis"),
        ({"a": True}, wm.PlanError, "expected integers, slices and an ellipsis"),
        ({"a": np.s_[::0]}, wm.PlanError, "slice step cannot be zero"),
        ({"a": slice("x", None)}, wm.PlanError, "on axis 0"),
        ({"b": wm.shard("b", 1, 0, 2)}, wm.PlanError, "dim of a shard of tensor 'b' is 1, expected one of 1 dimension"),
        (3, TypeError, "wants is a int, expected None, names"),
        ([3], TypeError, "the name of a wanted tensor is a int"),
    ],
)
def test_wrong_wants_are_one_clear_error(path, wants, error, message):
    """Names that are not there and indices that do not fit are an error of the package; the handle stays usable."""
    with wm.open(path) as f:
        with pytest.raises(error, match=message) as caught:
            wm.plan(f, wants)
        assert not isinstance(caught.value, wm.TensorFileError) or caught.value.path == str(path)
        assert f["b"].shape == (3,)
    with pytest.raises(error, match=message):
        wm.plan(path, wants)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2}, "rank is 2, expected 0 to 1, as world_size is 2"),
        ({"rank": -1, "world_size": 2}, "rank is -1"),
        ({"world_size": 0}, "world_size is 0, expected at least 1"),
        ({"local_rank": 1}, "local_rank is 1, expected 0 to 0, as local_world_size is 1"),
        ({"gap": -1}, "gap is -1"),
        ({"chunk": 0}, "chunk is 0, expected at least 1"),
        ({"budget": 0}, "budget is 0, expected at least 1"),
        ({"max_over_read": 0.9}, "max_over_read is 0.9"),
        ({"max_over_read": math.nan}, "max_over_read is nan"),
        ({"max_over_read": math.inf}, "max_over_read is inf"),
    ],
)
def test_wrong_numbers_are_one_clear_error(path, options, message):
    with pytest.raises(wm.PlanError, match=message):
        wm.plan(path, **options)


def test_runs_without_number_are_refused(tmp_path):
    """An index of more than 2**24 parts is refused before memory is taken for them."""
    path = tmp_path / "m.safetensors"
    header = b'{"a":{"dtype":"U8","shape":[1099511627776,2],"data_offsets":[0,2199023255552]}}'
    with path.open("wb") as file:
        file.write(safe.raw(header))
        file.truncate(8 + len(header) + (1 << 41))
    with pytest.raises(wm.PlanError, match="one of too many parts"):
        wm.plan(path, {"a": np.s_[:, 1]})
    assert wm.plan(path, {"a": np.s_[5:8]}).nbytes == 6


def test_a_file_that_changed_is_not_planned(path):
    with wm.open(path) as f:
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(wm.FileChangedError):
            wm.plan(f)
