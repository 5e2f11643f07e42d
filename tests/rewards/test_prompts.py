"""The judge's prompts: pinned, and replaced by files."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.agents.core.prompts import Prompt, write_prompts
from ratchet.commands.config import open_config
from ratchet.core.config import Config, RewardsConfig
from ratchet.core.errors import UserError
from ratchet.core.plugins import known_plugins
from ratchet.core.records import Question
from ratchet.inference.completion import Message, SamplingParams
from ratchet.inference.scripted import ScriptedEngine
from ratchet.rewards import scoring
from ratchet.rewards.builtin.claims import Claim
from ratchet.rewards.prompts import builtin_prompts, fill, judge_prompts, replaced_digest
from ratchet.rewards.reward import load_reward
from tests.helpers.commands import command_of
from tests.helpers.pinned import check_pinned
from tests.helpers.reward_cases import make_config, score_with, settings_of, trajectory
from tests.helpers.tiny import save_tiny_tokenizer, tiny_format

PROMPTS = builtin_prompts()
main = command_of("prompts")

QUESTION = Question(id="q1", text="Where does Velm lie?", reference="Velm lies by the sea.")
CLAIMS = (Claim(id=1, aspect="Velm is a harbour.", explanation="It places it.", evidence="a harbour"),)
ANSWER = trajectory(answer="Velm lies by the sea.", documents=["Velm says: it is by the sea."])
JUDGED = [name for name in known_plugins("rewards") if load_reward(name).needs_judge]


def test_the_judges_prompts_are_pinned() -> None:
    expected, response = "Velm lies by the sea.", "Velm is a harbour."
    documents = [{"title": "Velm", "text": 'Velm says: "the sea".'}]
    nugget, claims = {"aspect": "It lies by the sea."}, [claim.model_dump() for claim in CLAIMS]
    prompts = [
        fill(PROMPTS, "nuggets.user", QUESTION, expected_output=expected),
        fill(
            PROMPTS,
            "nugget_score.user",
            QUESTION,
            expected_output=expected,
            generated_output=response,
            aspect=nugget,
        ),
        fill(PROMPTS, "claims.user", QUESTION, answer=response),
        fill(PROMPTS, "claim_support.user", QUESTION, context=documents, answer_aspects=claims),
        fill(PROMPTS, "claim_precision.user", QUESTION, expected_output=expected, answer_aspects=claims),
    ]
    check_pinned(Path(__file__).parent / "snapshots/judge.txt", "\n\n======\n".join(prompts) + "\n")


# Replaced prompts

ASPECT = {"aspect": "It lies by the sea", "explanation": "asked", "evidence": "the sea"}
REPLIES: dict[str, dict[str, Any]] = {
    "expected_output_aspects": {"expected_output_aspects": [ASPECT, ASPECT]},
    "score": {"score": 1, "rationale": "so"},
    "answer_aspects": {"answer_aspects": [{"id": 1, **ASPECT}]},
    "scores_list": {"scores_list": [{"id": 1, "score": 1, "rationale": "so"}]},
}


def judge() -> ScriptedEngine:
    """A judge that answers whatever it is asked for by its schema, and reads no prompt."""

    def reply(_: str, params: SamplingParams, messages: Sequence[Message]) -> str:
        assert isinstance(params.schema, dict)
        return json.dumps(next(REPLIES[name] for name in params.schema["properties"] if name in REPLIES))

    return ScriptedEngine(tiny_format(), reply, max_context=32_000, fingerprint="judge-a")


def folder_of(folder: Path, **texts: str) -> str:
    """The judge's prompts as files, some of them with other texts."""
    list(write_prompts({slot: Prompt(texts.get(slot, prompt.text)) for slot, prompt in PROMPTS.items()}, folder))
    return str(folder)


Score = Callable[[Config, str], list[str]]


@pytest.fixture
def prompts_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Score:
    """The prompts that one score of one trajectory asks under a config."""

    def score(config: Config, name: str) -> list[str]:
        engine = judge()
        monkeypatch.setattr(scoring, "open_engines", lambda *_: {"judge": engine})
        found = score_with(config, [QUESTION], [ANSWER], [name], tmp_path / "scores")
        assert found[ANSWER.key, name].value is not None, name
        return [str(call.messages[-1]["content"]) for call in engine.calls]

    return score


def test_every_replaced_prompt_is_asked_and_stored_scores_are_not_reused(tmp_path: Path, prompts_of: Score) -> None:
    tagged = {slot: f"This is {slot}.\n\n{prompt.text}" for slot, prompt in PROMPTS.items()}
    folder = folder_of(tmp_path / "tagged", **tagged)
    seen: set[str] = set()
    own = make_config(tmp_path, [QUESTION], rewards={"runs": 1})
    replaced = make_config(tmp_path, [QUESTION], rewards={"runs": 1, "prompts": folder, "nuggets_per_call": 2})
    for name in JUDGED:
        prompts_of(own, name)
        assert prompts_of(own, name) == [], "all is stored"
        asked = prompts_of(replaced, name)
        seen |= {slot for slot in PROMPTS if any(text.startswith(f"This is {slot}.") for text in asked)}
    assert seen == set(PROMPTS)


def test_the_prompt_of_lists_counts_where_it_is_asked() -> None:
    correctness, faithfulness = load_reward("correctness"), load_reward("faithfulness")
    first = RewardsConfig(verdicts="score_first")
    assert replaced_digest(first, correctness) == "8d8be1796a62", "as before there were lists"
    lists, first_lists = (RewardsConfig(nuggets_per_call=10, verdicts=one.verdicts) for one in (RewardsConfig(), first))
    digests = [replaced_digest(one, correctness) for one in (RewardsConfig(), first, lists, first_lists)]
    assert digests[0] == "" and len(set(digests)) == 4
    assert replaced_digest(lists, faithfulness) == ""


def test_prompts_that_are_written_and_read_back_change_nothing(tmp_path: Path) -> None:
    own = make_config(tmp_path, [QUESTION])
    same = make_config(tmp_path, [QUESTION], rewards={"runs": 2, "prompts": folder_of(tmp_path / "same")})
    for name in JUDGED:
        assert settings_of(same, name, "") == settings_of(own, name, ""), name


# In a config, and the command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "experiment.yaml"
    model = {"path": str(save_tiny_tokenizer(tmp_path / "model")), "engine": "scripted"}
    path.write_text(yaml.safe_dump({"run": "run", "models": {"agent": model}, "system": {"name": "naive_rag"}}))
    return path


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("nugets.user.txt", "{{question}}", r"nugets.user.txt: rewards.prompts .*did you mean 'nuggets.user.txt'"),
        ("claims.user.txt", "{{question}}", r"claims.user.txt: the variable \{\{answer\}\} is missing"),
    ],
)
def test_a_wrong_prompt_is_named_when_the_config_is_loaded(
    file: str, text: str, message: str, config: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / file).write_text(text)
    with pytest.raises(UserError, match=message):
        open_config(config, ["rewards.prompts=mine"])
    with pytest.raises(UserError, match=r"rewards.prompts: there is no folder .*--system rewards"):
        open_config(config, ["rewards.prompts=nowhere"])


def test_the_command_writes_the_judges_prompts_and_a_config_reads_them(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--config", str(config), "--system", "rewards", "--out", str(tmp_path / "mine")])
    assert f"{len(PROMPTS)} prompts of the judge" in capsys.readouterr().out
    file = tmp_path / "mine/nuggets.user.txt"
    assert "{{expected_output}}" in file.read_text()
    file.write_text("Nuggets, please: {{question}} {{expected_output}}\n")
    given = open_config(config, ["rewards.prompts=mine"])
    asked = fill(judge_prompts(given.rewards), "nuggets.user", QUESTION, expected_output="By the sea.")
    assert asked == 'Nuggets, please: "Where does Velm lie?" "By the sea."'
    assert json.loads(given.model_dump_json())["rewards"]["prompts"] == "mine", "a run folder has it as it is written"
