"""Memory of plans, and how they find the free memory: control groups, and models larger than these."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.builders import safetensors as safe
from tests.support import HANG, SOURCES, run_child

from weightmap.core.bytes.memory import headroom

MIB, GIB = 1 << 20, 1 << 30
linux = pytest.mark.skipif(sys.platform != "linux", reason="control groups are Linux's")


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return str(root)


MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1024 kB\nMemAvailable:    8388608 kB\n"
LITTLE = "MemAvailable:    1024 kB\n"
V2 = "25 1 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "30 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
V1 += "31 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
STAT = "anon 1000\nfile {file}\nshmem 5\ninactive_file {inactive}\nactive_file {active}\n"


def group2(limit, used, inactive=0, active=0, *, at):
    return {
        f"{at}/memory.max": f"{limit}\n",
        f"{at}/memory.current": f"{used}\n",
        f"{at}/memory.stat": STAT.format(file=inactive + active + 5, inactive=inactive, active=active),
    }


def group1(limit, used, inactive=0, active=0, *, at):
    stat = f"cache 9\ninactive_file 1\ntotal_inactive_file {inactive}\ntotal_active_file {active}\n"
    return {
        f"{at}/memory.limit_in_bytes": f"{limit}\n",
        f"{at}/memory.usage_in_bytes": f"{used}\n",
        f"{at}/memory.stat": stat,
    }


ROOT = "sys/fs/cgroup"
# Memory of the machine, groups of the process, mounts, the groups' files: the remaining memory, by how many groups.
SYSTEMS = {
    "nothing": (None, None, None, {}, None, 0),
    "no groups": (MEMINFO, None, None, {}, 8 * GIB, 0),
    "version 2, no limit": (MEMINFO, "0::/user.slice\n", V2, group2("max", GIB, at=f"{ROOT}/user.slice"), 8 * GIB, 0),
    # Pages of files are taken back, so they do not count; those of tmpfs stay.
    "version 2": (MEMINFO, "0::/a/b\n", V2, group2(4 * GIB, 3 * GIB, GIB, GIB, at=f"{ROOT}/a/b"), 3 * GIB, 1),
    "version 2, a group above bounds more": (
        *(MEMINFO, "0::/a/b\n", V2),
        group2(4 * GIB, GIB, at=f"{ROOT}/a/b") | group2(2 * GIB, GIB + 5, 5, at=f"{ROOT}/a"),
        *(GIB, 2),
    ),
    "version 2, the machine bounds more": (LITTLE, "0::/a\n", V2, group2(4 * GIB, GIB, at=f"{ROOT}/a"), MIB, 1),
    "version 2, used up": (MEMINFO, "0::/a\n", V2, group2(GIB, 2 * GIB, at=f"{ROOT}/a"), 0, 1),
    # A container: the root of its namespace is the group itself.
    "version 2, in a container": (MEMINFO, "0::/\n", V2, group2(GIB, 0, at=ROOT), GIB, 1),
    "version 2, outside of what is mounted": (
        *(MEMINFO, "0::/../other\n", V2.replace(" / ", " /docker/abc ")),
        *(group2(GIB, 0, at=ROOT), GIB, 1),
    ),
    "version 1": (
        *(MEMINFO, "4:cpu,cpuacct:/\n3:memory:/job\n0::/\n", V1),
        group1(2 * GIB, GIB + GIB // 2, GIB // 4, GIB // 4, at=f"{ROOT}/memory/job")
        | group1(0x7FFFFFFFFFFFF000, 9 * GIB, at=f"{ROOT}/memory"),
        *(GIB, 1),
    ),
    "version 1, in a container": (
        *(MEMINFO, "3:memory:/docker/abc\n", V1.replace(" / ", " /docker/abc ", 1)),
        *(group1(2 * GIB, GIB, at=f"{ROOT}/memory"), GIB, 1),
    ),
    "both versions": (
        *(MEMINFO, "3:memory:/job\n0::/job\n", V1 + V2.replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")),
        *(group1(2 * GIB, GIB, at=f"{ROOT}/memory/job"), GIB, 1),
    ),
    "a mount point with a space": (
        *(MEMINFO, "0::/a\n", V2.replace("/sys/fs/cgroup", "/control\\040groups")),
        *(group2(GIB, 0, at="control groups/a"), GIB, 1),
    ),
    "damaged": (
        *("MemAvailable: many kB\n", "what\n0::/a\n", V2),
        {f"{ROOT}/a/memory.max": "1000000\n", f"{ROOT}/a/memory.stat": "active_file none\n"},
        *(0, 1),
    ),
}


def files_of(meminfo, groups, mounted, files, *_):
    """The files of /proc and of the groups, by their names."""
    proc = {"proc/meminfo": meminfo, "proc/self/cgroup": groups, "proc/self/mountinfo": mounted}
    return {name: text for name, text in proc.items() if text is not None} | files


@pytest.mark.parametrize("name", SYSTEMS)
def test_headroom_is_what_machine_and_groups_leave(name, tmp_path):
    """Limits of every group of either version count, wherever it is mounted; files' pages can be taken back."""
    *_, left, groups = SYSTEMS[name]
    found = headroom(tree(tmp_path, files_of(*SYSTEMS[name])))
    assert found.limit == left
    assert len(found.groups) == groups


@pytest.fixture(scope="module")
def big(tmp_path_factory):
    path = tmp_path_factory.mktemp("big") / "m.safetensors"
    header = {
        f"t{i:02}": {"dtype": "U8", "shape": [8, MIB], "data_offsets": [8 * MIB * i, 8 * MIB * (i + 1)]}
        for i in range(32)
    }
    with path.open("wb") as file:
        file.write(safe.raw(json.dumps(header).encode()))
        for i in range(32):
            file.write(bytes([i]) * 8 * MIB)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


# Goes through a model, and prints its peak memory and the stated limit.
GO_THROUGH = """
import sys
import weightmap as wm
from weightmap.core.bytes.memory import headroom
path, way = sys.argv[1:]
with wm.plan(path, chunk=4 << 20) as plan:
    left = headroom().limit
    for number, (name, array) in enumerate(plan.run(way, release=True)):
        assert (array[:, ::4096] == number).all(), name
    print(number + 1, left)
"""


def own_group():
    for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory", path.lstrip("/"))
        if number == "0" and Path("/sys/fs/cgroup/cgroup.controllers").exists():
            group = Path("/sys/fs/cgroup", path.lstrip("/"))
            if "memory" in (group / "cgroup.subtree_control").read_text(encoding="utf-8"):
                return group
    raise FileNotFoundError


@contextlib.contextmanager
def limited(limit):
    systemd = shutil.which("systemd-run")
    command = [systemd or "", "--user", "--scope", "--quiet", "-p", f"MemoryMax={limit}", "-p", "MemorySwapMax=0"]
    if systemd and subprocess.run([*command, "true"], capture_output=True, check=False, timeout=HANG).returncode == 0:
        yield command, {}
        return
    group = None
    try:
        group = own_group() / f"weightmap-test-{os.getpid()}"
        group.mkdir()
        name = "memory.max" if (group / "memory.max").exists() else "memory.limit_in_bytes"
        (group / name).write_text(str(limit), encoding="ascii")
    except OSError as error:
        if group is not None and group.is_dir():
            group.rmdir()
        pytest.skip(f"no control group can be made here: {error}")
    members = group / "cgroup.procs"
    try:
        yield [], {"preexec_fn": lambda: members.write_text(str(os.getpid()), encoding="ascii")}
    finally:
        group.rmdir()


@linux
@pytest.mark.parametrize("way", ["map", "read"])
def test_a_model_larger_than_its_control_group(big, way):
    """A process that may use a third of the model's bytes goes through all of it, and is not ended."""
    limit = 96 * MIB
    with limited(limit) as (command, options):
        done = subprocess.run(
            [*command, sys.executable, "-c", GO_THROUGH, str(big), way],
            env={**os.environ, "PYTHONPATH": SOURCES},
            capture_output=True,
            text=True,
            timeout=HANG,
            check=False,
            **options,
        )
    assert done.returncode == 0, done.stderr
    count, left = map(int, done.stdout.split())
    assert count == 32
    assert left <= limit


@linux
@pytest.mark.parametrize("way", ["map", "read"])
def test_a_model_larger_than_the_memory_of_its_process(big, way):
    """With a limit on private memory, and no more of the model in the page cache than a few chunks and a tensor."""
    code = """
import resource, sys
import weightmap as wm
path, way = sys.argv[1:]
held = int(open("/proc/self/statm").read().split()[5]) * 4096
resource.setrlimit(resource.RLIMIT_DATA, (held + (48 << 20),) * 2)
with wm.plan(path, chunk=4 << 20, budget=16 << 20) as plan:
    most, f = 0, plan.file
    for number, (name, array) in enumerate(plan.run(way, release=True)):
        assert (array[:, ::4096] == number).all(), name
        most = max(most, sum(one.resident for one in f.residency().values()))
print(most)
"""
    assert int(run_child(code, big, way).stdout) <= 64 * MIB
