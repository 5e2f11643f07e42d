"""A tiny Qwen3 with random weights that begins its thoughts by itself, and an experiment in which it plays and judges.

What it says is nonsense. It begins a turn with a thought, which it may close or go on with until a budget does; under
a grammar its strings come to an end.
"""

import json
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from ratchet.core.config import load_config
from ratchet.core.files import read_segments
from ratchet.core.records import Trajectory
from ratchet.core.runfolder import RunFolder
from ratchet.inference.chat_formats import open_chat_format
from ratchet.inference.thoughts import without_thoughts
from ratchet.rewards.store import stored_scores
from ratchet.training.rows import check_rows, read_rows, table_rows
from tests.helpers.experiment import make_experiment
from tests.helpers.families import SIZES
from tests.helpers.reported import whole_text
from tests.helpers.templates import templated_tokenizer

BUDGET = 8
SYSTEM = '''
"""Answers, and answers again."""

from ratchet.agents.core.output import object_schema
from ratchet.agents.core.system import SystemSpec
from ratchet.agents.core.tools import Answer
from ratchet.core.config import Section

FORM = object_schema(answer={"type": "string", "minLength": 2, "maxLength": 20})


class Settings(Section):
    pass


async def solve(question, tools, settings):
    talk = tools.dialogue("player", "Think, then answer.")
    tools.so_far = Answer((await tools.ask(talk, question.text, FORM))["answer"])
    return Answer((await tools.ask(talk, "Are you sure?", FORM))["answer"])


SYSTEM = SystemSpec(Settings, solve, roles=("player",))
'''
BONUS = {"<think>": 9.0, "</think>": 5.0, '"': 5.0}
"""Of the logits of tokens, against some 0 of all others: of the first behind a line break alone."""


def save_thinker(folder: Path) -> Path:
    """A folder with the model."""
    tokenizer = templated_tokenizer("qwen3")
    tokens = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 0,
    }
    torch.manual_seed(1)
    # vLLM's kernels for CPUs take no heads of less than 32 numbers.
    model = Qwen3ForCausalLM(Qwen3Config(**{**SIZES, **tokens, "head_dim": 32}))
    vocabulary, width = tokenizer.get_vocab(), SIZES["hidden_size"]
    embed, head = model.model.embed_tokens.weight, model.lm_head.weight
    line_break = tokenizer.encode("\n", add_special_tokens=False)[-1]
    with torch.no_grad():
        # The first number of every hidden state is by far the largest, behind a line break the second is as large.
        embed[:, 0] = 10.0
        embed[:, 1] = 0.0
        embed[line_break, :2] = torch.tensor([10.0, 10.0])
        head[:, :2] = 0.0
        head[vocabulary["<think>"], 1] = BONUS["<think>"] / (width / 2) ** 0.5
        for mark in ("</think>", '"'):
            head[[at for token, at in vocabulary.items() if token.startswith(mark)], 0] = BONUS[mark] / width**0.5
    model.save_pretrained(folder)
    tokenizer.save_pretrained(str(folder))
    return folder


def make_thinking_experiment(folder: Path, **changes: Any) -> Path:
    """A round of a system that asks twice, with a judge, both played by the thinker; returns the config's path.
    `changes`: of the model."""
    path = make_experiment(folder, questions=4)
    model = {"path": str(save_thinker(folder / "thinker")), "dtype": "float32", "device": "cpu", "max_context": 2048}
    model |= {"cache_gb": 0.2, "thoughts": {"budget": BUDGET}} | changes
    (folder / "twice.py").write_text(SYSTEM)
    settings = yaml.safe_load(path.read_text()) | {"models": {"agent": model, "judge": model}}
    settings["system"] = {"name": str(folder / "twice.py"), "roles": {"player": {"max_tokens": 64}}}
    settings["sampling"] |= {"samples": 2}
    settings["rewards"] = {"weights": {"relevance": 1.0}, "select": {"min_reward": None}, "runs": 1}
    settings["evaluation"] = {"scores": ["f1"]}
    settings["training"] |= {"max_steps": 2, "eval_steps": 2, "learning_rate": 1e-2, "dev_fraction": 0.0}
    path.write_text(yaml.safe_dump(settings))
    return path


def check_thinking_run(config: Path) -> None:
    """Check what the round of this config left behind."""
    run, chat = RunFolder(config.parent / "run"), open_chat_format(load_config(config).models["agent"])
    folder, closed = run.round(1), 0
    played = {one.key: one for one in read_segments(folder.trajectories, Trajectory)}
    kept = list(table_rows(read_rows(folder.rows).table))
    assert check_rows(kept, played) >= len(kept) > 0
    for row in kept:
        trajectory, conversation = played[row.trajectory], played[row.trajectory].conversations[row.conversation]
        calls = {call.start: call for call in trajectory.model_calls if call.conversation == row.conversation}
        thoughts = [calls[start].thought_tokens for start, _ in conversation.actions()]
        assert not any(thoughts[:-1]), "behind a thought, which the template drops, a new row begins"
        assert conversation.rewritten == (row.conversation > 0)
        for start, end in conversation.actions():
            said = without_thoughts(chat.decode(row.ids[start : end - 1]))
            assert json.loads(said, strict=False)["answer"] and "<think>" not in said
            unlearnt = [n for n in range(start, end) if not row.loss_mask[n]]
            if chat.decode([row.ids[n] for n in unlearnt]) == "\n</think>\n\n":
                assert calls[start].thought_tokens == BUDGET + len(unlearnt)
                closed += 1
    assert closed, "some thoughts reach their budget"
    scores = stored_scores(folder.scores, played.keys()).values()
    judged = [verdict["text"] for score in scores for verdict in score.verdicts]
    assert all("score" in json.loads(without_thoughts(text), strict=False) for text in judged)
    assert any("</think>" in text for text in judged), "the judge thinks, and answers in form"
    arms = json.loads((folder.evaluation / "results.json").read_text())["arms"]
    assert arms and all(arm["measures"]["thought_tokens"]["mean"] > 0 for arm in arms)
    page = whole_text(run.report.read_text())
    assert "conversations begin where the chat template wrote earlier turns in another way" in page
    assert "2 token rows of 1 dialogue:" in page and '"thought":' in page
