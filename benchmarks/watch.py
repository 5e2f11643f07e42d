"""`ratchet watch` over a generated run of many trajectories: time to the first page, memory, and every filter.

    python benchmarks/watch.py --folder /tmp/watch [--trajectories 100000] [--gigabytes 10] [--json FILE] [--keep]

Writes a run folder whose trajectories have the size and the make-up of real ones (most of it token ids), scores and a
selection, starts the command as a user does, and asks it over HTTP. Measured are a start without an index (the first
page is of what is indexed by then), the building of the index, and a start with it. Memory is the process's peak
(VmHWM), and processor time is given beside the wall clock. What was read lately is in the machine's page cache, as for
a run that is being written. The folder is deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import httpx
import yaml

from commands.arguments import run_command
from ratchet.config import SystemConfig
from ratchet.files import write_json, write_jsonl
from ratchet.progress import Progress
from ratchet.records import Conversation, Event, ModelCall, Passage, Question, Search, Span, Trajectory, content_key
from ratchet.runfolder import RunFolder
from rewards.store import record_settings, score_file
from sampling.store import Manifest, TrajectoryStore

SAMPLES = 8
VARIANTS = 64
"""Trajectories that differ in all; the others differ from one of them in key, question, sample, seed and answer."""
ROLES = ("coordinator", "searcher", "answerer")
WORDS = [
    f"{a}{b}{c}" for a in ("ma", "to", "ri", "le", "sun", "vor") for b in ("ka", "li", "ne", "dor") for c in "aeimnst"
]
STATUSES = ("finished",) * 16 + ("unparsed", "unparsed", "out_of_budget", "failed")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where the run is written, on a disk with room")
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--json", type=Path, help="write the measurements here as well")
    parser.add_argument("--keep", action="store_true", help="keep the run, and use it if it is there already")
    given = parser.parse_args()
    config = given.folder / "config.yaml"
    if not config.exists():
        make_run(given.folder, given.trajectories, int(given.gigabytes * 1e9))
    found = measure(config, given.folder)
    print(json.dumps(found, indent=1))
    if given.json:
        write_json(given.json, found)
    if not given.keep:
        shutil.rmtree(given.folder)


def make_run(folder: Path, count: int, size: int) -> None:
    rng = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    questions = [
        Question(id=f"q{n:06d}", text=f"Who {_text(rng, 8)}?", answers=(_text(rng, 2),), kind=f"kind {n % 5}")
        for n in range(count // SAMPLES)
    ]
    write_jsonl(folder / "train.jsonl", questions)
    run = RunFolder(folder / "run").round(1)
    keys = [content_key("watch", question.id, sample) for question in questions for sample in range(SAMPLES)]
    system = SystemConfig(name="mrag")
    TrajectoryStore(run.trajectories).plan(
        Manifest(system=system, setting={"policy": "base"}, models={}, index="", sources={}, seed=0, questions="",
                 samples=SAMPLES, keys=tuple(keys))
    )  # fmt: skip
    variants = [_variant(random.Random(n), size // count) for n in range(VARIANTS)]
    with Progress("trajectories", len(keys)) as progress, (run.trajectories / "part-0.jsonl").open("wb") as file:
        for n, key in enumerate(keys):
            line = variants[n % VARIANTS] | {
                b'"KEY"': json.dumps(key).encode(), b'"QUESTION"': json.dumps(questions[n // SAMPLES].id).encode(),
                b"-111": str(n % SAMPLES).encode(), b'"ANSWER"': json.dumps(_text(rng, 4)).encode(),
                b'"STATUS"': json.dumps(rng.choice(STATUSES)).encode(),
            }  # fmt: skip
            file.write(b"".join(line.get(part, part) for part in _parts(line[b""])) + b"\n")
            progress.advance()
    values = {key: rng.random() for key in keys}
    record_settings(run.scores, "f1", {})
    path = score_file(run.scores, "f1", {})
    path.write_text(
        "".join(json.dumps({"trajectory": key, "name": "f1", "value": value}) + "\n" for key, value in values.items())
    )
    chosen = []
    for n, question in enumerate(questions):
        mine = {key: values[key] for key in keys[n * SAMPLES : (n + 1) * SAMPLES]}
        kept = [key for key, value in mine.items() if value > 0.9]
        chosen.append({"question_id": question.id, "kept": kept, "cause": "kept", "reason": "", "rewards": mine})
    write_json(run.selection, {"weights": {"f1": 1.0}, "rule": {}, "questions": chosen})
    split = {"path": str(folder / "train.jsonl")}
    config = {
        "run": str(folder / "run"), "models": {"agent": {"path": str(folder / "model")}}, "system": {"name": "mrag"},
        "index": {"path": str(folder / "index")}, "questions": {"train": split, "dev": split, "test": split},
        "rewards": {"weights": {"f1": 1.0}},
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(config))


def _text(rng: random.Random, count: int) -> str:
    return " ".join(rng.choices(WORDS, k=count))


def _variant(rng: random.Random, size: int) -> dict[bytes, bytes]:
    """A trajectory's line under the key b"", of about `size` bytes."""
    tokens = max(60, (size - 14_000) // len(ROLES) // 6)
    passages = tuple(
        Passage(id=f"d{n}", document_id=f"d{n}", title=_text(rng, 3), text=_text(rng, 150), score=1.0) for n in range(8)
    )
    events: list[Event] = []
    conversations = []
    for number, role in enumerate(ROLES):
        ids = tuple(rng.choices(range(10_000, 50_000), k=tokens))
        spans = (
            Span(start=0, end=tokens - 40, author="user"),
            Span(start=tokens - 40, end=tokens, author="assistant", sampled=True),
        )
        conversations.append(Conversation(role=role, model="agent", trainable=True, ids=ids, spans=spans))
        events.append(
            ModelCall(role=role, conversation=number, start=tokens - 40, end=tokens, text=_text(rng, 30), parse="free",
                      finish_reason="stop", prompt_tokens=tokens, new_tokens=40, at=1.0, seconds=1.0)
        )  # fmt: skip
    events.append(Search(role="searcher", query=_text(rng, 4), k=8, offset=0, passages=passages, at=1.0, seconds=0.1))
    made = Trajectory(
        key="KEY", question_id="QUESTION", system="mrag", policy="base", sample=-111, seed=1, status="finished",
        answer="ANSWER", passages=passages[:2], events=tuple(events), conversations=tuple(conversations), seconds=4.0,
    )  # fmt: skip
    return {b"": made.model_dump_json().encode().replace(b'"status":"finished"', b'"status":"STATUS"')}


def _parts(line: bytes) -> Iterator[bytes]:
    """The line cut at its placeholders, which are parts of their own."""
    for mark in (b'"KEY"', b'"QUESTION"', b"-111", b'"STATUS"', b'"ANSWER"'):
        before, _, line = line.partition(mark)
        yield from (before, mark)
    yield line


class Server:
    """The command as a user starts it."""

    def __init__(self, config: Path, cache: Path) -> None:
        self.began = time.monotonic()
        command = [
            sys.executable,
            "-m",
            "report",
            "watch",
            "--config",
            str(config),
            "--port",
            "0",
            "--cache",
            str(cache),
        ]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.client = httpx.Client(base_url=line.split(" is at ")[1].split(";")[0], timeout=120, trust_env=False)

    def get(self, address: str, **filters: Any) -> tuple[float, dict[str, Any]]:
        began = time.monotonic()
        answer = self.client.get(address, params=filters)
        answer.raise_for_status()
        return time.monotonic() - began, answer.json()

    def first_page(self) -> tuple[float, dict[str, Any]]:
        """Seconds from the process's start until the page, its script and style and a list with rows are there."""
        for address in ("/", "/page.js", "/page.css"):
            self.client.get(address).raise_for_status()
        while not (found := self.get("/trajectories", limit=50)[1])["rows"]:
            time.sleep(0.01)
        return time.monotonic() - self.began, found

    def peak(self) -> float:
        """MB of memory at most, so far."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1e3

    def cpu(self) -> float:
        """Seconds of processor time so far, which other work on the machine does not change much."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()


def measure(config: Path, folder: Path) -> dict[str, Any]:
    cache = folder / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    new = Server(config, cache)
    seconds, found = new.first_page()
    result: dict[str, Any] = {
        "bytes": sum(path.stat().st_size for path in (folder / "run").rglob("*.jsonl")),
        "first page of a run without an index, seconds": round(seconds, 2),
        "processor time of it, seconds": round(new.cpu(), 2),
        "a page after that, seconds": round(new.get("/trajectories", limit=50)[0], 3),
        "trajectories in the index then": found["total"],
        "memory then, MB": round(new.peak()),
    }
    slowest = 0.0
    while (page := new.get("/trajectories", limit=50))[1]["index"]["done"] < page[1]["index"]["total"]:
        slowest = max(slowest, page[0])
        time.sleep(0.5)
    result |= {
        "index complete after, seconds": round(time.monotonic() - new.began),
        "processor time of it all, seconds": round(new.cpu()),
        "slowest page meanwhile, seconds": round(slowest, 3),
        "memory while indexing, MB": round(new.peak()),
        "index on disk, MB": round(sum(path.stat().st_size for path in cache.iterdir()) / 1e6),
    }
    new.stop()
    times, cpu, peaks = [], [], []
    for _ in range(5):
        server = Server(config, cache)
        times.append(server.first_page()[0])
        peaks.append(server.peak())
        cpu.append(server.cpu())
        if len(times) < 5:
            server.stop()
    result |= {
        "first page with an index, seconds (median of 5)": round(statistics.median(times), 2),
        "processor time of it, seconds (median)": round(statistics.median(cpu), 2),
        "fastest and slowest of them": [round(min(times), 2), round(max(times), 2)],
        "memory with an index at the first page, MB": round(max(peaks)),
    }
    total = server.get("/trajectories")[1]["total"]
    asked: dict[str, dict[str, Any]] = {
        "first": {}, "last": {"offset": total - 50}, "status": {"status": "unparsed"}, "kept": {"kept": "yes"},
        "kind": {"kind": "kind 3"}, "role": {"role": "searcher"}, "best reward": {"order": "best"},
        "reward range": {"min": 0.5, "max": 0.6}, "a word": {"text": "sunnet"},
        "three words": {"text": "sunnet vorkaa makas"},
        "all": {"text": "sun", "kind": "kind 3", "kept": "yes", "status": "finished", "role": "answerer",
                "order": "best"},
    }  # fmt: skip
    pages = {}
    for name, filters in asked.items():
        tries = [server.get("/trajectories", **filters) for _ in range(3)]
        pages[name] = {"seconds": round(min(t for t, _ in tries), 3), "found": tries[0][1]["total"]}
    result["pages of 50"] = pages
    result["memory after these, MB"] = round(server.peak())
    result["state, first time, seconds"] = round(server.get("/state")[0], 2)
    time.sleep(2.5)
    result["state, later, seconds"] = round(server.get("/state")[0], 3)
    rows = server.get("/trajectories", offset=total - 20)[1]["rows"]
    opened = [server.get(f"/trajectories/{row['key']}")[0] for row in rows]
    result["opening a trajectory: first, median of the others, seconds"] = [
        round(opened[0], 2), round(statistics.median(opened[1:]), 3)
    ]  # fmt: skip
    result["memory at the end, MB"] = round(server.peak())
    server.stop()
    return result


if __name__ == "__main__":
    run_command(main)
