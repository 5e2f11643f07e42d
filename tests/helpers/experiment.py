"""A whole experiment in a folder: a small corpus, questions, a script that plays the model, a tiny model to train."""

import importlib
import io
import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
NAMES = ("Velm", "Tarn", "Oskel", "Brimm", "Duvay", "Harrow", "Quill", "Sallow", "Ember", "Fennick", "Gale", "Isk")
RELEVANCE = '{{"relevance": [{}], "end_search": true}}'

SCRIPT: list[dict[str, Any]] = [
    # The coordinator, which a seed makes take different ways.
    {
        "prompt": "Choose who acts next",
        "match": "Question:",
        "replies": [f'{{"agent": "{a}"}}' for a in ("searcher", "searcher", "answerer", "planner")],
    },
    {"prompt": "Choose who acts next", "match": "found", "reply": '{"agent": "answerer"}'},
    {"prompt": "Choose who acts next", "replies": ['{"agent": "finisher"}', '{"agent": "searcher"}', "oops"]},
    {"prompt": "You search documents", "match": "Document:", "replies": [RELEVANCE.format("false, true")] * 2},
    {"prompt": "You search documents", "match": "Question:", "reply": '{"search_query": "harbour engineer"}'},
    {"prompt": "You search documents", "replies": ['{"relevance": [], "end_search": true}']},
    {"prompt": "Answer the question", "replies": ['{"answer": "Ada Torrin"}', '{"answer": "nobody"}']},
    {"default": '{"plan": ["search", "answer"]}'},
]


def make_experiment(folder: Path, questions: int = 8, delay: float = 0.0) -> Path:
    """Write everything an experiment needs into `folder`; returns the config's path."""
    # late: most tests that run commands need neither library themselves
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.helpers.tiny import save_tiny_tokenizer

    torch.manual_seed(3)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(**shape, vocab_size=512)).save_pretrained(folder / "model")
    save_tiny_tokenizer(folder / "model")
    write_lines(folder / "script.jsonl", *({**rule, "delay": delay} for rule in SCRIPT))
    write_lines(
        folder / "corpus.jsonl",
        *(
            {"id": name.lower(), "title": name, "text": f"The harbour of {name} was built by the engineer Ada Torrin."}
            for name in NAMES
        ),
    )
    # Other words in each split: a run that trains on its test questions is stopped.
    words = {"train": "Who built {}'s harbour?", "dev": "{}'s harbour: whose work?", "test": "Name {}'s engineer?"}
    for split, asked in words.items():
        write_lines(
            folder / f"{split}.jsonl",
            *(
                {
                    "id": f"{split}-{i}",
                    "text": asked.format(NAMES[i]),
                    "answers": ["Ada Torrin"],
                    "gold_ids": [NAMES[i].lower()],
                }
                for i in range(questions)
            ),
        )
    model = {"path": str(folder / "model"), "engine": "scripted", "script": str(folder / "script.jsonl")}
    config = {
        "run": str(folder / "run"),
        "models": {"agent": {**model, "dtype": "float32", "device": "cpu"}},
        "index": {"path": str(folder / "index"), "documents": [str(folder / "corpus.jsonl")]},
        "questions": {split: {"path": str(folder / f"{split}.jsonl")} for split in ("train", "dev", "test")},
        "system": {
            "settings": {"style": "brief", "explanations": False, "max_calls": 5, "max_search_turns": 2},
            "roles": {"default": {"max_tokens": 64}},
        },
        "sampling": {"samples": 4, "concurrency": 6},
        "rewards": {"weights": {"f1": 4.0, "lexical_support": 1.0}},
        "training": {"max_steps": 4, "eval_steps": 2, "batch_size": 4, "micro_batch": 2, "warmup_steps": 1},
        "evaluation": {"scores": ["em", "f1"]},
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def write_lines(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


class Done(NamedTuple):
    """How a command ended, and what it printed to stdout and stderr."""

    returncode: int
    stdout: str


def command(*words: str, folder: Path = ROOT) -> Done:
    """Run `python WORDS`, a command of the project, in this process and in `folder`, and the stages of a loop too."""
    out, on_term = io.StringIO(), signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(out):
        patch.chdir(folder)
        patch.setattr("sys.stdin", io.StringIO())
        patch.setattr("ratchet.commands.selftrain.run_stage", run_stage)
        try:
            return Done(run_words(words), out.getvalue())
        finally:
            signal.signal(signal.SIGTERM, on_term)


def run_words(words: Sequence[str]) -> int:
    """The exit status of `python WORDS`, run in this process."""
    from ratchet.commands.main import run_command  # late: programs that tests start import this module too

    words = [word for word in words if word != "-P"]
    module, *rest = ("ratchet.commands.main", *words[2:]) if words[0] == "-m" else (Path(words[0]).stem, *words[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [words[0], *rest])
        try:
            run_command(importlib.import_module(module).main)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def run_stage(command: Sequence[str]) -> int:
    """A stage of a loop, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RATCHET_IN_LOOP", "1")
        return run_words(command[1:])


def environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def preloaded(**variables: str) -> dict[str, str]:
    """The same for commands that find torch and the other heavy libraries loaded, as do the commands that they start
    (see tests/preloaded)."""
    given = {**environment(), **variables}
    folders = [str(ROOT / "tests" / "preloaded"), given.get("PYTHONPATH", "")]
    return {**given, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def running(process: subprocess.Popen[Any]) -> int:
    """The process in which a command runs that was started with the environment of `preloaded`, once it has begun."""
    return int((Path(os.environ["RATCHET_PRELOADED"]).parent / str(process.pid)).read_text())


def kill(process: subprocess.Popen[Any]) -> None:
    """SIGKILL a command that was started with the environment of `preloaded`, and its process group."""
    if process.poll() is not None:
        return
    try:
        os.killpg(running(process), signal.SIGKILL)
    except (FileNotFoundError, ProcessLookupError):  # it has not begun, or has ended
        process.kill()
    process.wait()
