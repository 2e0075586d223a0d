"""One turn of a contender: prints seconds, processor seconds, and added MiB of memory, as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from workflows import common

STATUS = Path("/proc/self/status")


def memory(*fields: str) -> list[float]:
    """Return fields of /proc/self/status in MiB."""
    lines = dict(line.split(":", 1) for line in STATUS.read_text(encoding="ascii").splitlines())
    return [int(lines[field].split()[0]) / 1024 for field in fields]


class Peak(threading.Thread):
    """The most anonymous memory, sampled every 2 ms, since the system does not record it."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.ended = threading.Event()
        self.most = 0.0

    def run(self) -> None:
        """Look until the end."""
        while not self.ended.wait(0.002):
            self.most = max(self.most, *memory("RssAnon"))


def main(script: str, question: str, who: str, folder: str) -> dict[str, Any]:
    """Prepare, and run once."""
    try:
        work = common.load(script).WORKFLOWS[question][who](Path(folder))
    except common.Absent as error:
        return {"absent": str(error)}
    if isinstance(work, list):
        return common.run(work)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    resident, anonymous = memory("VmRSS", "RssAnon")
    peak = Peak()
    peak.start()
    processor, seconds = time.process_time(), time.perf_counter()
    kept = work()
    seconds, processor = time.perf_counter() - seconds, time.process_time() - processor
    peak.ended.set()
    peak.join()
    most = max(peak.most, *memory("RssAnon"))
    del kept
    found = {"seconds": seconds, "processor": processor, "resident": memory("VmHWM")[0] - resident}
    return found | {"anonymous": most - anonymous}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
