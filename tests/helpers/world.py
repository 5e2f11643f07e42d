"""A tiny model folder, and a run folder as sampling and selection would leave it."""

import json
import random
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from packaging.version import Version
from pyarrow import Table
from transformers import LlamaConfig, LlamaForCausalLM

from ratchet.core.config import Config, load_config
from ratchet.core.files import read_log, write_json, write_jsonl
from ratchet.core.records import Conversation, ModelCall, QuestionChoice, Selection, Trajectory
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.inference.chat import Dialogue
from ratchet.inference.completion import Completion
from ratchet.inference.tokenizer import load_tokenizer
from ratchet.training.callback import TrainingCallback
from ratchet.training.lora import add_lora, load_model
from ratchet.training.rows import Rows, prepare_rows
from ratchet.training.trainer import RowTrainer, trainer_config
from tests.helpers.configs import write_config
from tests.helpers.tiny import tiny_format, tiny_tokenizer

trl_head_on_cpu = pytest.mark.skipif(
    Version(version("trl")) < Version("1.16"),
    reason="before TRL 1.16 its head runs on GPUs alone where Triton is there",
)


def prepared_rows(config: Config, folder: RoundFolder) -> tuple[Rows, Mapping[str, str]]:
    """The round's rows as training builds them."""
    rows = prepare_rows(config, folder)
    return rows, rows.questions


def curve(folder: RoundFolder) -> list[dict[str, Any]]:
    """The log of a training, without what differs from run to run."""
    lines = read_log(folder.training / "log.jsonl")
    return [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines]


def make_trainer(config: Config, folder: RoundFolder, out: Path) -> tuple[RowTrainer, Table]:
    """A trainer before its first step, and the rows it is to train on."""
    table = prepared_rows(config, folder)[0].table
    agent = config.models["agent"]
    settings = trainer_config(config.training, agent, out, len(table), 0, 1)
    learner = add_lora(load_model(agent), config.training.lora, 0)
    watch = TrainingCallback(out, 5, has_dev=False)
    tokenizer = load_tokenizer(agent.path)
    dev = table.slice(0, 0)
    return RowTrainer(learner, tokenizer, settings, table, dev, watch, False, config.training), table


def tiny_model(folder: Path, tied: bool = True) -> Path:
    tokenizer = tiny_tokenizer()
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=tied,
    )
    LlamaForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def dialogue(
    role: str, turns: list[tuple[str, str, str]], trainable: bool = True
) -> tuple[Conversation, list[ModelCall]]:
    """A conversation of (user text, what the model says, parse state) turns; 'malformed' turns are not parsed."""
    chat = tiny_format()
    talk = Dialogue(role, "agent", chat, trainable, system=f"You are the {role}.")
    calls = []
    for user, says, parse in turns:
        talk.user(user)
        before = len(talk.ids)
        ids = (*chat.encode(says), chat.end_of_turn)
        start, end = talk.assistant(Completion(ids, says, "stop", before), parsed=parse != "malformed")
        calls.append(
            ModelCall(
                role=role,
                conversation=0,
                start=start,
                end=end,
                text=says,
                parse=parse,
                finish_reason="stop",
                prompt_tokens=before,
                new_tokens=len(ids),
                at=0.0,
                seconds=0.1,
            )
        )
    return talk.freeze(), calls


def trajectory(
    key: str, question: str, parts: list[tuple[Conversation, list[ModelCall]]], **changes: object
) -> Trajectory:
    calls = [c.model_copy(update={"conversation": i}) for i, (_, own) in enumerate(parts) for c in own]
    facts: dict[str, object] = {
        "key": key, "question_id": question, "system": "mrag", "policy": "base", "sample": 0, "seed": 0,
        "status": "finished", "answer": "x", "events": tuple(calls), "conversations": tuple(c for c, _ in parts),
    }  # fmt: skip
    return Trajectory.model_validate(facts | changes)


def sample_trajectory(number: int, question: int) -> Trajectory:
    words = random.Random(number)
    text = " ".join(words.choice(["harbour", "Ada", "Torrin", "built", "agent"]) for _ in range(words.randint(2, 12)))
    coordinator = dialogue(
        "coordinator", [(f"Question: {text}?", '{"agent": "searcher"}', "ok"), ("Next?", text, "free")]
    )
    searcher = dialogue("searcher", [(text, '{"search_query": "harbour"}', "ok")])
    answerer = dialogue("answerer", [(text, "Ada Torrin", "free")], trainable=False)
    return trajectory(f"t{number}", f"q{question}", [coordinator, searcher, answerer])


def make_run(folder: Path, questions: int = 12, **training: object) -> tuple[Path, Config, RoundFolder]:
    """(config file, config, round folder) with one kept trajectory for each question, ready for train.py."""
    model = folder / "model"
    if not model.exists():
        tiny_model(model)
    for name, word in (("train", "Who"), ("dev", "Where"), ("test", "Where")):
        rows = [json.dumps({"id": f"q{n}", "text": f"{word} is {n}?"}) for n in range(questions)]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    settings = {
        "batch_size": 4, "micro_batch": 2, "learning_rate": 0.01, "warmup_steps": 2, "max_steps": 6, "eval_steps": 2,
        "gradient_checkpointing": False, "dev_fraction": 0.45, "lora": {"r": 4, "lora_alpha": 8}, **training,
    }  # fmt: skip
    models = {"agent": {"path": str(model), "dtype": "float32", "device": "cpu"}}
    path = write_config(folder, models=models, training=settings)
    config = load_config(path)
    rounds = RunFolder(config.folder).round(1)
    trajectories = [sample_trajectory(n, n) for n in range(questions)]
    write_jsonl(rounds.trajectories / "a.jsonl", trajectories)
    choices = tuple(
        QuestionChoice(question_id=t.question_id, kept=(t.key,), cause="kept", reason="best", rewards={t.key: 1.0})
        for t in trajectories
    )
    write_json(rounds.selection, Selection(weights={"f1": 1.0}, rule={}, questions=choices).model_dump(mode="json"))
    return path, config, rounds
