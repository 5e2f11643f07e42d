"""The whole evaluation with a scripted engine, and the table rebuilt without any."""

import json
from pathlib import Path

import pytest
import yaml

from ratchet.core.config import Config, EvaluationConfig, load_config
from ratchet.core.errors import UserError
from ratchet.core.records import Question, Trajectory
from ratchet.core.runfolder import RoundFolder
from ratchet.evaluation import round_arms as comparing
from ratchet.evaluation.arms import check_leaks, question_set, read_arms, results_path, scores_path
from ratchet.evaluation.comparisons import best_baseline, compare, primary_measure
from ratchet.evaluation.headline import verdict
from ratchet.evaluation.measures.estimates import Difference, Estimate
from ratchet.evaluation.results import Arm, Results, read_results
from ratchet.evaluation.round_arms import plan
from ratchet.evaluation.sweep import plan_sweep
from ratchet.inference.adapters import adapter_digest
from ratchet.inference.engine import EngineError
from ratchet.inference.scripted import ScriptedEngine
from ratchet.questions.leakage import training_question_digests
from ratchet.questions.load import load_split
from ratchet.questions.manifest import open_run
from tests.helpers.adapter_folders import save_adapter
from tests.helpers.arms import make_arm
from tests.helpers.commands import command_of

main = command_of("evaluate")

TAKEN = ("base", "adapter", "base again", "random selection", "../x", "scores-test")


def evaluate(config: Config, folder: RoundFolder, split: str, adapter: Path | None) -> Results:
    [results] = comparing.evaluate(config, folder, [split], adapter)
    return results


def build_results(config: Config, folder: RoundFolder, split: str) -> Results:
    [results] = comparing.build_results(config, folder, [split])
    return results


def record_training_questions(config: Config, adapter: Path) -> None:
    trained = {"": load_split(config.questions.train, config.seed)}
    asked = {"splits": {}, "questions": training_question_digests(trained)["questions"], "documents": []}
    (adapter / "training_questions.json").write_text(json.dumps(asked))


def opened(path: Path) -> tuple[Config, RoundFolder]:
    config = load_config(path)
    return config, open_run(config).round(1)


def test_arms_are_run_scored_and_compared(config_path: Path) -> None:
    config, folder = opened(config_path)
    results = evaluate(config, folder, "test", folder.adapter)
    assert [arm.name for arm in results.arms] == ["base", "adapter", "plain"]
    base, trained, _ = results.arms
    assert (base.policy, base.statuses) == ("base", {"finished": 6})
    assert trained.policy != "base"
    assert base.measures["em"].mean == 0.5
    assert base.measures["em"].n == 6
    assert set(base.kinds) == {"a", "b"}
    assert base.kinds["a"]["em"].n == 3
    assert [comparison.arm for comparison in results.comparisons] == ["adapter", "plain"]
    assert results.verdict.startswith(
        "No clear difference from base, and not clearly different from the untrained baseline plain. "
        "F1 0.50 -> 0.50: +0.00 [0.00, 0.00], p = 1.000 on 6"
    )
    assert results.best_baseline is not None
    assert (results.best_baseline.name, results.best_baseline.costs["calls"].ratio) == ("plain", 1.0)
    assert read_results(results_path(folder, "test")) == results


def test_a_baseline_may_skip_a_question_set(config_path: Path) -> None:
    config = load_config(config_path, ["evaluation.skip.plain=[test]", "evaluation.samples=3"])
    folder = open_run(config).round(1)
    assert [arm.name for arm in evaluate(config, folder, "test", None).arms] == ["base"]
    results = evaluate(config, folder, "dev", None)
    assert {arm.name: arm.trajectories for arm in results.arms} == {"base": 18, "plain": 18}
    assert [arm.measures["em"].n for arm in results.arms] == [6, 6], "a question counts once"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *((f"baselines={{'{name}': {{name: no_retrieval}}}}", "choose another") for name in TAKEN),
        ("skip.plane=[test]", r"evaluation\.skip\.plane: no such baseline.*'plain'"),
        ("adapters={plane: x}", r"evaluation\.adapters\.plane: no such baseline.*'plain'"),
        ("adapters={plain: x}", r"evaluation\.adapters\.plain: x: there is no adapter here; train it first"),
    ],
)
def test_a_wrong_baseline_is_said_by_its_key(config_path: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan(load_config(config_path, [f"evaluation.{override}"]), ["test"], None)


def test_running_again_asks_no_model_and_the_table_needs_none(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, folder = opened(config_path)
    results = evaluate(config, folder, "test", folder.adapter)
    results_path(folder, "test").unlink()

    async def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a stored trajectory was sampled again")

    monkeypatch.setattr(ScriptedEngine, "generate", refuse)
    assert evaluate(config, folder, "test", folder.adapter) == results
    monkeypatch.setattr("ratchet.inference.engines.open_engine", refuse)
    results_path(folder, "test").unlink()
    assert build_results(config, folder, "test") == results
    assert read_results(results_path(folder, "test")) == results


@pytest.mark.slow
def test_arms_may_be_sampled_first_and_scored_when_their_models_are_gone(
    config_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config, folder = opened(config_path)
    both = (folder.adapter, folder.adapter)
    with pytest.raises(UserError, match="base/test: this arm was not sampled yet"):
        comparing.evaluate(config, folder, ["test"], folder.adapter, sampled=True)
    main(["--phase", "sample", "--config", str(config_path)])
    assert "base 6, adapter 6, plain 6" in capsys.readouterr().out
    assert not any(scores_path(store).exists() for store in read_arms(folder, "test").values())
    assert not results_path(folder, "test").exists()

    def refuse(*args: object) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("ratchet.inference.engines.open_engine", refuse)
    main(["--phase", "score", "--config", str(config_path)])
    assert "No clear difference from base" in capsys.readouterr().out
    [results] = comparing.evaluate(config, folder, ["test"], *both, sampled=True)
    assert [arm.name for arm in results.arms] == ["base", "parent", "adapter", "plain"]
    assert build_results(config, folder, "test") == results, "the parent stays in the table"
    save_adapter(folder.adapter, 2.0)
    with pytest.raises(UserError, match="parent/test: this arm was not sampled yet"):
        comparing.evaluate(config, folder, ["test"], *both, sampled=True)
    with pytest.raises(SystemExit):
        main(["table", "--phase", "score", "--config", str(config_path)])
    assert "unrecognized arguments: --phase" in capsys.readouterr().err, "a table is made from what is stored"


@pytest.mark.slow
def test_results_are_of_one_adapter_and_split_each(config_path: Path) -> None:
    config, folder = opened(config_path)
    path = results_path(folder, "test")
    assert read_results(path) is None
    with pytest.raises(UserError, match="ratchet evaluate"):
        build_results(config, folder, "test")
    first = evaluate(config, folder, "test", folder.adapter).arm("adapter")
    save_adapter(folder.adapter, 2.0)
    results = evaluate(config, folder, "test", folder.adapter)
    second = results.arm("adapter")
    assert first is not None and second is not None and first.policy != second.policy
    assert second.trajectories == 6, "the earlier adapter's trajectories are kept and not counted"
    assert evaluate(config, folder, "dev", None).split == "dev"
    assert read_results(path) == results, "another split does not replace the results"
    path.write_text("{}")
    with pytest.raises(UserError, match="ratchet evaluate table"):
        read_results(path)


def test_another_round_finds_the_arms_and_scores_that_are_known(
    config_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, first = opened(config_path)
    evaluate(config, first, "dev", first.adapter)
    second = open_run(config).round(2)
    save_adapter(second.adapter, 2.0)

    async def only_the_candidate(self: object, prompt: object, params: object, adapter: object, *_: object) -> None:
        assert adapter == str(second.adapter), "a stored trajectory was sampled again"
        raise EngineError("no answer is needed here")

    monkeypatch.setattr(ScriptedEngine, "generate", only_the_candidate)
    [results] = comparing.evaluate(config, second, ["dev"], second.adapter, first.adapter)
    assert [arm.statuses for arm in results.arms] == [{"finished": 6}, {"finished": 6}, {"failed": 6}, {"finished": 6}]
    arms = [read_arms(folder, "dev") for folder in (first, second)]
    assert arms[0]["base"] == arms[1]["base"] and arms[0]["adapter"] == arms[1]["parent"]
    config = load_config(config_path, ["questions.leakage={questions: 'off'}"])
    sweep = plan_sweep(config)
    states = {cell.checkpoint.name: sweep.status(cell).state for cell in sweep.cells()}
    assert states == {"base": "done", "run-round-1": "done", "run-round-2": "done"}, "a sweep finds them too"


def test_no_adapter_is_said_and_the_base_alone_can_be_measured(
    config_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = opened(config_path)
    (folder.adapter / "adapter_config.json").unlink()
    with pytest.raises(UserError, match="train an adapter first"):
        main(["--config", str(config_path)])
    main(["--config", str(config_path), "--base-only"])
    assert "no adapter to compare it with" in capsys.readouterr().out


def test_a_baseline_that_was_trained_too_is_compared_beside_the_untrained_ones(config_path: Path) -> None:
    other = save_adapter(config_path.parent / "other", 2.0)
    settings = yaml.safe_load(config_path.read_text())
    settings["evaluation"]["baselines"]["plain trained"] = settings["evaluation"]["baselines"]["plain"]
    settings["evaluation"]["adapters"] = {"plain trained": str(other)}
    config_path.write_text(yaml.safe_dump(settings))
    config, folder = opened(config_path)
    results = evaluate(config, folder, "test", folder.adapter)
    policies = {arm.name: arm.policy for arm in results.arms}
    assert policies["plain"] == "base" and policies["plain trained"] == adapter_digest(other)
    assert results.best_baseline is not None and results.best_baseline.name == "plain", "the best of the untrained"
    assert results.best_baseline.candidates == 1
    assert results.trained_baseline is not None and results.trained_baseline.name == "plain trained"
    assert "not clearly different from the untrained baseline plain. F1" in results.verdict
    assert "Plain trained, with an adapter of its own -> trained: F1 0.50 -> 0.50: +0.00 [" in results.verdict
    record_training_questions(config, other)
    with pytest.raises(UserError, match=r"other was trained on 6 of the 6 questions of test"):
        check_leaks(config.questions.leakage, plan(config, ["test"], folder.adapter))


def outcomes(right: list[bool]) -> tuple[list[Question], list[Trajectory]]:
    questions = [Question(id=str(i), text="?", answers=("yes",)) for i in range(len(right))]
    made = [
        Trajectory(
            key=f"{i}",
            question_id=str(i),
            system="s",
            policy="base",
            sample=0,
            seed=0,
            status="finished",
            answer="yes" if is_right else "no",
        )
        for i, is_right in enumerate(right)
    ]
    return questions, made


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([False] * 20, [True] * 15 + [False] * 5, "The trained model is better. F1 0.00 -> 0.75: +0.75 ["),
        ([True] * 20, [False] * 15 + [True] * 5, "The trained model is worse. F1 1.00 -> 0.25: -0.75 ["),
        ([False] * 12, [True] * 4 + [False] * 8, "No clear difference. F1 0.00 -> 0.33: +0.33 [0.08, 0.58], p = 0.125"),
        ([False] * 12, [True] * 6 + [False] * 6, "The trained model is better. F1 0.00 -> 0.50: +0.50 [0.25, 0.75], p"),
        ([True, False] * 10, [False, True] * 10, "No clear difference. F1 0.50 -> 0.50: +0.00 ["),
        ([False], [True], "F1 0.00 -> 1.00: +1.00 on one question, which says nothing"),
    ],
)
def test_the_verdict_follows_the_interval_and_the_test(before: list[bool], after: list[bool], expected: str) -> None:
    arms = []
    for name, right in (("base", before), ("adapter", after)):
        questions, made = outcomes(right)
        arms.append(make_arm(name, "s", "p", questions, made, {}, ("em", "f1"), {}))
    comparison = compare(arms[0], arms[1], questions, "f1", 0)
    assert ". ".join(filter(None, verdict(comparison, "f1"))).startswith(expected)


def invented_arms(**right: list[bool]) -> tuple[list[Question], list[Arm]]:
    """An arm for each list of right and wrong answers."""
    made = [(name, *outcomes(values)) for name, values in right.items()]
    return made[0][1], [make_arm(name, "s", "p", q, t, {}, ("em", "f1"), {}) for name, q, t in made]


def with_cost(arm: Arm, calls: float, tokens: float) -> Arm:
    costs = {"calls": calls, "prompt_tokens": tokens, "new_tokens": tokens / 10}
    return arm.model_copy(update={"measures": arm.measures | {n: Estimate(mean=v, n=1) for n, v in costs.items()}})


def right(number: int, of: int = 50) -> list[bool]:
    return [i < number for i in range(of)]


def test_a_gain_over_base_does_not_stand_without_an_untrained_baseline_that_is_as_good() -> None:
    questions, arms = invented_arms(base=right(4), adapter=right(24), rag=right(21)[::-1], plain=right(10))
    arms[1], arms[2] = with_cost(arms[1], 6, 5000), with_cost(arms[2], 1, 1000)
    best = best_baseline(arms, "f1", 0)
    assert best is not None and (best.name, best.candidates, best.difference.n) == ("rag", 2, 50)
    assert best.difference.mean == pytest.approx(0.06)
    assert best.costs["calls"].ratio == 6 and best.costs["prompt_tokens"].ratio == 5
    words, numbers = verdict(compare(arms[0], arms[1], questions, "f1", 0), "f1", best)
    assert words == (
        "The trained model is better than base, but not clearly different from the best untrained baseline, rag"
    )
    assert numbers.startswith("F1 0.08 -> 0.48: +0.40 [")
    assert "on 50 questions. Untrained rag -> trained: F1 0.42 -> 0.48: +0.06 [" in numbers
    assert numbers.endswith(
        "on 50 questions; 1.0 model calls and 1100 tokens a question -> 6.0 model calls and 5500 tokens. Of 2 "
        "untrained baselines, rag scored best on these questions; on new ones it may score lower."
    )


@pytest.mark.parametrize(
    ("base", "baseline", "expected"),
    [
        (4, 4, "The trained model is better than base, and better than the untrained baseline rag"),
        (4, 44, "The trained model is better than base, but worse than the untrained baseline rag: use rag"),
        (
            4,
            25,
            "The trained model is better than base, but not clearly different from the untrained baseline rag, which "
            "is ahead: use rag",
        ),
        (24, 24, "No clear difference from base, and not clearly different from the untrained baseline rag"),
        (24, 4, "No clear difference from base, but better than the untrained baseline rag"),
        (44, 44, "The trained model is worse than base, and worse than the untrained baseline rag: use rag"),
    ],
)
def test_the_headline_names_base_and_baseline(base: int, baseline: int, expected: str) -> None:
    questions, arms = invented_arms(base=right(base), adapter=right(24), rag=right(baseline))
    comparison, best = compare(arms[0], arms[1], questions, "f1", 0), best_baseline(arms, "f1", 0)
    words, numbers = verdict(comparison, "f1", best)
    assert words == expected and "scored best on these questions" not in numbers


def test_equal_baselines_are_told_apart_by_their_calls_and_without_any_there_is_none() -> None:
    _, arms = invented_arms(base=right(4), adapter=right(24), long=right(20), short=right(20))
    arms[2], arms[3] = with_cost(arms[2], 5, 10), with_cost(arms[3], 1, 10)
    best = best_baseline(arms, "f1", 0)
    assert best is not None and best.name == "short"
    assert best_baseline(arms[:2], "f1", 0) is None
    assert best_baseline([arms[0], *arms[2:]], "f1", 0) is None


def test_the_verdict_of_nothing_to_compare() -> None:
    assert verdict(None, "f1")[0] == ""
    a, b = (make_arm(n, "s", "p", [], [], {}, (), {}) for n in "ab")
    assert "cannot be compared" in verdict(compare(a, b, [], "f1", 0), "f1")[1]
    assert not Difference(n=0).is_clear()


def test_long_form_questions_are_judged_by_correctness() -> None:
    long, short = Question(id="l", text="?", reference="text"), Question(id="s", text="?", answers=("a",))
    judged, by_rules = (
        Config(run="unused", evaluation=EvaluationConfig(scores=(name,))) for name in ("correctness", "em")
    )
    assert primary_measure(judged, [long]) == "correctness"
    assert primary_measure(judged, [long, short]) == "f1"
    assert primary_measure(by_rules, [long]) == "f1"


def test_questions_without_answers_are_judged_by_gold_documents_or_what_is_asked_for() -> None:
    def primary(question: Question, *scores: str) -> str:
        return primary_measure(Config(run="unused", evaluation=EvaluationConfig(scores=scores)), [question])

    query = Question(id="q", text="?", gold_ids=("d1",))
    assert primary(query, "em", "useful_searches") == "gold_recall"
    bare = Question(id="b", text="?")
    assert primary(bare, "em", "nugget_containment", "model_calls", "reported") == "reported"
    assert primary(bare, "em") == "f1"


def test_a_benchmark_has_the_configs_name_and_a_split_that_of_its_benchmark(tmp_path: Path) -> None:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "Ash trees"}\n')
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td1\t1\n")
    split = {"benchmark": "beir", "path": str(tmp_path), "split": "test"}
    config = Config.model_validate(
        {"run": "unused", "questions": {"test": split}, "evaluation": {"benchmarks": {"trees": split}}}
    )
    assert [question_set(config, name).title for name in ("test", "trees")] == ["beir", "trees"]
