"""`plan` of `f.weights`: it reads only the parts of pieces that decode the wanted rows."""

import numpy as np
import pytest
from tests.checkpoints.checkpoints import EXAMPLES
from tests.support import each, in_one_item

import weightmap as wm


@in_one_item("name", EXAMPLES)
def test_parts_of_every_scheme(tmp_path, name):
    """A part equals the indexed decoded parameter, mapped and read."""
    example = EXAMPLES[name]()
    path = example.write(tmp_path / name)
    with wm.open(path) as f:
        whole = f.weights[example.name].dequantize()
        rows = len(whole)
        keys = [np.s_[0:2], np.s_[rows // 2 :], np.s_[-1], np.s_[1, 2:5], np.s_[::-3], np.s_[:, 3:9], np.s_[2:2], ...]
        for key in [*keys, wm.shard(whole, 0, 1, 2), wm.shard("w", -1, 0, 2)]:
            for how in ("map", "read"):
                plan = wm.plan(f.weights, {example.name: key})
                [(found, part)] = plan.run(how)
                index = key.of(whole.shape) if isinstance(key, type(wm.shard("w", 0, 0, 1))) else key
                wanted = whole if key is ... else whole[index]
                part = np.asarray(part)
                assert (found, part.shape, part.dtype) == (example.name, wanted.shape, whole.dtype)
                assert part.tobytes() == np.ascontiguousarray(wanted).tobytes()


def test_reads_are_the_rows_of_each_piece(tmp_path):
    """Exactly the bytes of rows 8 to 11, of row-major pieces and their scales; all bytes of other pieces."""

    def check(name):
        example = EXAMPLES[name]()
        path = example.write(tmp_path / name)
        with wm.open(path) as f:
            plan = wm.plan(f.weights, {example.name: np.s_[8:12]}, gap=0, max_over_read=1)
            wanted = []
            for info in f.infos():
                count = info.shape[0] if len(info.shape) == 2 else 1
                height = len(example.values) / count  # rows of the parameter for one of the piece
                first, last = (int(8 // height), int(-(-12 // height))) if count > 1 else (0, count)
                each = info.nbytes // count
                if not info.name.endswith("weight_shape"):  # looked at before
                    wanted.append((info.offset + first * each, (last - first) * each))
            assert {(begin, size) for _, begin, size in plan.reads} == joined(wanted)
            assert plan.nbytes == sum(size for _, size in wanted)

    def joined(ranges):
        found = []
        for begin, size in sorted(ranges):
            if found and sum(found[-1]) == begin:
                found[-1] = (found[-1][0], found[-1][1] + size)
            else:
                found.append((begin, size))
        return set(found)

    each(("packed 4", "int8 channel", "int8 tensor", "mxfp4", "nvfp4", "fbgemm", "experts"), check)


def test_what_plans_refuse(tmp_path):
    """Unknown parameters, stored names, indices out of range, and several indices of one."""
    example = EXAMPLES["awq"]()
    with wm.open(example.write(tmp_path)) as f:
        for wants, error in (
            (["x"], wm.TensorNotFoundError),
            (list(example.tensors)[:1], wm.TensorNotFoundError),
            ({example.name: 10**6}, wm.PlanError),
            ([(example.name, 0), (example.name, 1)], wm.PlanError),
        ):
            with pytest.raises(error):
                wm.plan(f.weights, wants)
    (tmp_path / "config.json").unlink()
    with wm.open(tmp_path / "model.safetensors") as f, pytest.raises(wm.UnsupportedError, match="not said"):
        wm.plan(f.weights)
    wm.save(tmp_path / "model.safetensors", {"a": np.ones(2, np.float32)})
    with wm.open(tmp_path / "model.safetensors") as f:
        assert wm.plan(f.weights).names == tuple(f)
