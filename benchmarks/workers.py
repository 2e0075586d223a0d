"""One model, many workers: the memory that 1, 4 and 16 processes add when each opens it, and the second one's time.

    python benchmarks/workers.py [--mib 512] [--workers 1 4 16] [--turns 3] [--start fork spawn] [--only TEXT]

Workers import their libraries (forked ones have these from their parent, which has entered `compat.patched()`), then
open the model one after another, and read a byte of every page; it lies in the page cache. *PSS* is the memory added to
all processes together; a shared page counts once. *Anonymous* memory belongs to one worker alone. The *second* worker's
seconds are the processor's: of opening, and from the call to the last page.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing as mp
import subprocess
import sys
import tempfile
import time
from multiprocessing import reduction
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

import machine
from workflows import pretrained
from workflows.common import Absent, environment, matrices, need, touch

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

NUMPY, CAUSAL, SENTENCES = "numpy arrays", "a causal model of transformers", "a model of sentence-transformers"
PATCHED = "weightmap patched()"


def write(folder: Path, mib: int) -> None:
    """Write a file of float32, a causal model in bfloat16, and a model of sentences in float32."""
    need("weightmap").save(folder / "model.safetensors", matrices(mib))
    pretrained.write(folder, mib)
    try:
        transformers, tokenizers, sentences = need("transformers"), need("tokenizers"), need("sentence_transformers")
    except Absent:
        return
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "sentence"]
    vocabulary = tokenizers.models.WordPiece(vocab={word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    fast = transformers.BertTokenizerFast(tokenizer_object=tokenizers.Tokenizer(vocabulary))
    layers = max(1, mib // 48)  # 12.6 million parameters each
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}
    config = transformers.BertConfig(num_hidden_layers=layers, **sizes)
    plain = folder / "plain"
    transformers.BertModel(config).save_pretrained(plain)
    fast.save_pretrained(plain)
    sentences.SentenceTransformer(str(plain)).save(str(folder / "sentences"))


def with_tensors(model: Any) -> tuple[Any, list[Any]]:
    """Return a module and its tensors."""
    return model, [tensor.detach().reshape(-1) for tensor in (*model.parameters(), *model.buffers())]


def numpy_way(who: str, folder: Path) -> Callable[[Connection], tuple[Any, list[Any]]]:
    """Return opening a file, and its arrays; for sealed memory by the parent's descriptor."""
    path = folder / "model.safetensors"
    if who == "safetensors":
        load = need("safetensors.numpy").load_file
        return lambda _: (None, list(load(path).values()))
    wm = need("weightmap")

    def work(pipe: Connection) -> tuple[Any, list[Any]]:
        file = wm.open(reduction.recv_handle(pipe), mode="sealed") if who.endswith("sealed") else wm.open(path)
        return file, list(file.values())

    return work


def causal_way(who: str, folder: Path) -> Callable[[Connection], tuple[Any, list[Any]]]:
    """Return loading a causal model."""
    work = pretrained.loaded_model(pretrained.LOADERS[who], folder, forward=False)
    return lambda _: with_tensors(work())


def sentence_way(who: str, folder: Path) -> Callable[[Connection], tuple[Any, list[Any]]]:
    """Return loading a model of sentence-transformers."""
    load, patched = need("sentence_transformers").SentenceTransformer, need("weightmap.compat").patched

    def work(_: Connection) -> tuple[Any, list[Any]]:
        if who == "SentenceTransformer":
            return with_tensors(load(str(folder / "sentences"), device="cpu"))
        with patched():
            return with_tensors(load(str(folder / "sentences"), device="cpu"))

    return work


WAYS = {
    NUMPY: (numpy_way, ("weightmap", "weightmap, sealed", "safetensors")),
    CAUSAL: (causal_way, tuple(pretrained.LOADERS)),
    SENTENCES: (sentence_way, (PATCHED, "SentenceTransformer")),
}


def say(*lines: str) -> None:
    """Print lines at once."""
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def memory(pid: int | str = "self") -> np.ndarray[Any, Any]:
    """Return PSS and anonymous memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
    return np.array([kib["Pss"], kib["Anonymous"]]) / 1024


def worker(question: str, who: str, folder: Path, pipe: Connection) -> None:
    """Import, and open when told so."""
    work = WAYS[question][0](who, folder)
    pipe.send(None)
    pipe.recv()
    begin = time.process_time()
    model, tensors = work(pipe)
    opened = time.process_time() - begin
    for tensor in tensors:
        touch(tensor)
    pipe.send((opened, time.process_time() - begin))
    pipe.recv()
    del model


def measure(question: str, who: str, start: str, count: int, folder: Path) -> dict[str, float]:
    """Run `count` workers, and return the memory that they add to all processes, and the second one's seconds."""
    sealed = need("weightmap").open(folder / "model.safetensors", mode="sealed") if who.endswith("sealed") else None
    block = contextlib.ExitStack()
    if start == "fork":
        WAYS[question][0](who, folder)  # imports
        if who == PATCHED:
            block.enter_context(need("weightmap.compat").patched())
    context = mp.get_context(start)
    pipes, processes = [], []
    for _ in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=worker, args=(question, who, folder, theirs))
        process.start()
        ours.recv()
        pipes.append(ours)
        processes.append(process)
    everyone = ["self", *(process.pid for process in processes)]
    before = sum(map(memory, everyone))
    seconds = []
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        if sealed:
            reduction.send_handle(pipe, sealed.fileno(), process.pid)
        seconds.append(pipe.recv())
    pss, anonymous = sum(map(memory, everyone)) - before
    for pipe, process in zip(pipes, processes, strict=True):
        pipe.send(None)
        process.join()
    block.close()
    opened, touched = seconds[min(1, count - 1)]
    return {"pss": pss, "anonymous": anonymous / count, "opened": opened, "touched": touched}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=512)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--start", nargs="+", default=["fork", "spawn"])
    parser.add_argument("--only", default="", help="part of a question")
    parser.add_argument("--folder", type=Path, help="keep the files there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        if not (folder / "model.safetensors").exists():
            write(folder, options.mib)
        say(
            machine.cpu(),
            "",
            "| model | opened by | start | workers | PSS, MiB | of one | anonymous | second, s | touched |",
        )
        say("|---|---|---|--:|--:|--:|--:|--:|--:|")
        for question, start in itertools.product([name for name in WAYS if options.only in name], options.start):
            rows = []
            for count in options.workers:
                turns: dict[str, list[Any]] = {who: [] for who in WAYS[question][1]}
                for who in [*turns] * options.turns:
                    command = [sys.executable, __file__, "one", question, who, start, str(count), str(folder)]
                    ended = subprocess.run(command, env=environment(), check=True, stdout=subprocess.PIPE, text=True)
                    turns[who].append(json.loads(ended.stdout))
                rows += [(who, count, figures) for who, figures in turns.items() if figures[0] is not None]
            one = {who: median(turn["pss"] for turn in figures) for who, count, figures in rows if count == 1}
            for who, count, figures in sorted(rows, key=lambda row: WAYS[question][1].index(row[0])):
                pss, anonymous = (median(turn[key] for turn in figures) for key in ("pss", "anonymous"))
                opened, touched = (min(turn[key] for turn in figures) for key in ("opened", "touched"))
                more = f"{pss / one[who]:.2f}" if who in one else ""
                numbers = f"{count} | {pss:,.0f} | {more} | {anonymous:,.0f} | {opened:.3f} | {touched:.3f}"
                say(f"| {question} | {who} | {start} | {numbers} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["one"]:
        question, who, start, count, folder = sys.argv[2:7]
        try:
            found = measure(question, who, start, int(count), Path(folder))
        except Absent:
            found = None
        say(json.dumps(found))
    else:
        main()
