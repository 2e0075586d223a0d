"""numpy's .npz files: archives of .npy files."""

from tests import zip_files
from tests.fuzz.anatomy import Walk

from . import Builder, Example, Tensor, noise, normal, npy

FORMAT = "npz"
SUFFIX = ".npz"


def entry(name, tensor, **options):
    """The member of an array; numpy writes sizes of 64 bits into its header."""
    data = npy.build(npy.header_of(tensor), tensor.data)
    return zip_files.Entry(f"{name}.npy".encode(), data, **({"wide": False} | options))


def build(tensors, **options):
    """A sound archive of these arrays."""
    return zip_files.archive([entry(name, t) for name, t in tensors.items()], **options)


SMALL = {"a": normal((2, 3), 1), "b": noise("float16", (5,), 2)}


def examples():
    """Archives of stored members."""
    every = {f"w/{dtype}": noise(dtype, (3, 5), seed) for seed, dtype in enumerate(npy.CODES)}
    ranks = {
        "scalar": normal(()),
        "empty": normal((0, 4)),
        "ünï": normal((3,)),
        "..": normal((1, 1, 2)),
        "": normal((2,)),
    }

    def example(name, tensors, **options):
        data = build(tensors, **options)
        return Example(name, FORMAT, SUFFIX, data, tensors, checksums=True, written=False)

    wide = zip_files.archive([entry(name, t, wide=True) for name, t in SMALL.items()])
    return [
        example("nothing", {}),
        example("small", SMALL),
        example("every-dtype", every),
        example("ranks", ranks),
        example("zip64", SMALL, wide=True),
        Example("wide-members", FORMAT, SUFFIX, wide, SMALL, checksums=True, written=False),
    ]


def many(count):
    """Archives of `count` members."""
    one = npy.build(npy.header_of(Tensor("int8", (1,), b"\0")), b"\0")
    entries = [zip_files.Entry(b"%07d.npy" % i, one) for i in range(count)]
    return zip_files.archive(entries, wide=count > 65534)


def anatomy(data):
    """The records of an archive, and the tokens of the header of each member."""
    walk = Walk(data)
    if b"PK\6\6" in data:
        return walk.anatomy
    for begin, end in zip_files.walk(walk).values():
        walk.at = begin + 8
        length = walk.field(2)
        walk.span(length, walk.at, walk.at + walk.value(length))
        for match in npy.tokens(data, walk.at, end):
            walk.at = match.start()
            walk.field(len(match.group()), "token")
    return walk.anatomy


BUILDER = Builder(
    format=FORMAT,
    title="numpy .npz",
    suffix=SUFFIX,
    holds="archives of `numpy.savez`; stored arrays are read in place",
    examples=examples,
    damage=("tests.attacks.npz",),
    growing={"npz": many},
    anatomy=anatomy,
    errors=(8, 9),
    sealed=zip_files.sealed,
    trailing=zip_files.trailing,
    seconds={"npz": 40},
)
