"""The formats, labels and splits of the verification and medical benchmarks, from small files as their releases are."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.core.records import Question
from ratchet.questions.benchmark import load_benchmark
from ratchet.questions.load import load_questions
from tests.helpers.claims import (
    AVERITEC,
    CLAIM,
    COLLECTED,
    FAVIQ,
    FEVER,
    FEVER_NAMES,
    FEVEROUS,
    HOVER,
    LINES,
    MEDQA,
    NOTHING,
    OPTIONS,
    SCIFACT,
    write,
)


def pubmedqa(text: str = CLAIM, decision: str = "yes") -> dict[str, Any]:
    return {"QUESTION": text, "CONTEXTS": ["Salt was weighed."], "LABELS": ["METHODS"], "final_decision": decision}


def symmetric(identity: str, claim: str, evidence: str, label: str) -> dict[str, Any]:
    return {"id": identity, "claim": claim, "evidence": evidence, "gold_label": label, "label": label}


def loaded(benchmark: str, split: str, path: Path) -> list[Question]:
    return load_questions(SplitConfig(benchmark=benchmark, split=split, path=str(path)))


def names(question: Question) -> tuple[str, ...]:
    return tuple(label.name for label in question.labels)


LABELS = {
    **dict.fromkeys(("fever", "feverous", "faviq"), FEVER_NAMES),
    **dict.fromkeys(("factool_qa", "bingcheck", "factcheckbench"), ("true", "false")),
    "averitec": ("Supported", "Refuted", "Not Enough Evidence", "Conflicting Evidence/Cherrypicking"),
    "medqa": tuple("ABCD"),
    "scifact": ("SUPPORT", "CONTRADICT", "NOT ENOUGH INFO"),
    "hover": ("SUPPORTED", "NOT_SUPPORTED"),
}
FEVEROUS_TITLES = {"gold_titles": ("Velmora", "Ada_Pell", "Isles", "Ada"), "gold_ids": ()}
AS_LINES = {**FEVEROUS, "label": "supports", "evidence": LINES}
LINE_TITLES = {"gold_titles": ("Velmora", "Ada Pell"), "gold_ids": ("feverous:Velmora", "feverous:Ada Pell")}
TWO_TYPES = {**AVERITEC, "label": "Refuted", "claim_types": ["A", "B"]}
AGAINST = {**SCIFACT, "evidence": {"31": [{"sentences": [0], "label": "CONTRADICT"}]}}
AGAINST_FIELDS = {"id": "1", "label": "CONTRADICT", "gold_ids": ("scifact:31",)}
SAID = {"claim": CLAIM, "label": "true"}
HOPS = {**HOVER, "num_hops": 3}
FAVIQ_FIELDS = {"id": "a-1", "label": "REFUTES", "gold_ids": ("faviq:99",), "gold_titles": ("Velmora",)}


@pytest.mark.parametrize(
    ("split", "file", "row", "expected"),
    [
        ("fever/paper_dev", "paper_dev.jsonl.gz", FEVER, {"gold_titles": ("Velmora (isle)", "Ada: a life")}),
        ("fever/dev", "shared_task_dev.jsonl", NOTHING, {"label": "NOT ENOUGH INFO", "gold_titles": ()}),
        ("feverous/dev", "feverous_dev_challenges.jsonl", FEVEROUS, FEVEROUS_TITLES | {"kind": "Multi-hop Reasoning"}),
        ("feverous/dev_two", "dev.json.gz", AS_LINES, LINE_TITLES | {"label": "SUPPORTS"}),
        ("averitec/dev", "dev.json.gz", AVERITEC, {"id": "row-0", "kind": "Numerical Claim"}),
        ("averitec/train", "data/train.json", TWO_TYPES, {"label": "Refuted", "kind": "several types"}),
        ("faviq/r_dev", "faviq_r_set_v1.2/dev.jsonl", FAVIQ, FAVIQ_FIELDS),
        ("faviq/dev_two", "faviq_a_set/dev.jsonl", FAVIQ, FAVIQ_FIELDS),
        ("medqa/test", "phrases_no_exclude_test.jsonl", MEDQA, {"label": "B", "kind": "step1"}),
        ("factool_qa/test", "data.jsonl", SAID, {"id": "row-0", "label": "true"}),
        ("bingcheck/test", "data.jsonl", SAID, {"label": "true"}),
        ("factcheckbench/test", "data.jsonl", SAID, {"gold_ids": ()}),
        ("scifact/dev", "claims_dev.jsonl", AGAINST, AGAINST_FIELDS),
        ("scifact/dev_two", "claims_dev.jsonl", AGAINST, AGAINST_FIELDS),
        ("scifact/train", "data/claims_train.jsonl", {**SCIFACT, "evidence": {}}, {"label": "NOT ENOUGH INFO"}),
        ("hover/dev", "hover_dev_release_v1.1.json", HOPS, {"gold_titles": ("Velmora", "Ada"), "kind": "3 hops"}),
    ],
)
def test_a_row_of_a_release(tmp_path: Path, split: str, file: str, row: dict[str, Any], expected: Any) -> None:
    write(tmp_path / file, [row])
    benchmark, _, split = split.partition("/")
    [question] = loaded(benchmark, split, tmp_path)
    assert (question.text, question.form) == (CLAIM, "question" if benchmark == "medqa" else "claim")
    assert names(question) == LABELS[benchmark][: 2 if split.endswith("_two") else None]
    assert {key: getattr(question, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("benchmark", "file", "row", "spellings"),
    [
        ("fever", "paper_dev.jsonl", FEVER, {name: name for name in FEVER_NAMES}),
        ("feverous", "dev.json", FEVEROUS, {"supports": "SUPPORTS", "not enough info": "NOT ENOUGH INFO"}),
        ("faviq", "dev.jsonl", FAVIQ, {"SUPPORTS": "SUPPORTS", "REFUTES": "REFUTES"}),
        ("averitec", "dev.json", AVERITEC, {"Supported": "Supported", "Not Enough Evidence": "Not Enough Evidence"}),
        ("hover", "dev_release_v1.1.json", {**HOVER, "num_hops": 2}, {"SUPPORTED": "SUPPORTED"}),
        ("factool_qa", "data.jsonl", {"claim": CLAIM}, {True: "true", False: "false", "true": "true"}),
        ("bingcheck", "data.jsonl", {"claim": CLAIM}, {"true": "true", "false": "false"}),
        ("factcheckbench", "data.jsonl", {"claim": CLAIM}, {"true": "true", "false": "false"}),
        ("fever_symmetric", "test.jsonl", symmetric("1", CLAIM, "So.", ""), {"SUPPORTS": "SUPPORTS"}),
    ],
)
def test_labels_as_rows_write_them_and_no_others(
    tmp_path: Path, benchmark: str, file: str, row: dict[str, Any], spellings: dict[Any, str]
) -> None:
    split = load_benchmark(benchmark).default_split
    for written, label in spellings.items():
        write(tmp_path / file, [{**row, "label": written}])
        assert loaded(benchmark, split, tmp_path)[0].label == label
    write(tmp_path / file, [{**row, "label": "half true"}])
    known = next(iter(spellings.values())).casefold()
    with pytest.raises(UserError, match=rf"{file}(:| row )?.*1.*label 'half true' is none of .*{known}"):
        loaded(benchmark, split, tmp_path)
    write(tmp_path / file, [{**row, "label": None}])
    with pytest.raises(UserError, match="has no label; is this the file of a test"):
        loaded(benchmark, split, tmp_path)


def test_feverous_leaves_out_the_empty_row_and_dev_two_the_third_label(tmp_path: Path) -> None:
    empty = {"id": "", "claim": "", "label": "", "evidence": [{"content": [], "context": {}}], "challenge": ""}
    rows = [empty, FEVEROUS, {**FEVEROUS, "id": 6, "label": "NOT ENOUGH INFO"}]
    write(tmp_path / "feverous_dev_challenges.jsonl", rows)
    assert [one.id for one in loaded("feverous", "dev", tmp_path)] == ["5", "6"]
    [question] = loaded("feverous", "dev_two", tmp_path)
    assert question.id == "5" and names(question) == ("SUPPORTS", "REFUTES")
    assert names(loaded("feverous", "dev", tmp_path)[0]) == FEVER_NAMES


def test_fever_symmetric_asks_about_pairs_or_about_claims_alone(tmp_path: Path) -> None:
    rows = [
        symmetric("31", "Velmora is dry.", "It rains\nin Velmora .", "REFUTES"),
        symmetric("310000002", "Velmora is dry.", "No rain falls there .", "SUPPORTS"),
        symmetric("310000003", "Velmora is wet.", "It rains\nin Velmora .", "SUPPORTS"),
        symmetric("310000004", "Velmora is wet.", "No rain falls there .", "REFUTES"),
    ]
    write(tmp_path / "fever_symmetric_test.jsonl", rows)
    pairs = loaded("fever_symmetric", "test", tmp_path)
    assert pairs[0].text == "Velmora is dry.\nEvidence: It rains in Velmora ."
    assert len({one.text for one in pairs}) == 4, "a claim alone is there with both labels"
    alone = loaded("fever_symmetric", "test_open", tmp_path)
    assert {one.text: one.label for one in alone} == {"Velmora is dry.": "REFUTES", "Velmora is wet.": "SUPPORTS"}
    assert [one.id for one in alone] == ["31", "310000003"]
    assert alone[0].gold_ids == alone[1].gold_ids == pairs[0].gold_ids != pairs[1].gold_ids


def test_medqa_labels_are_the_options(tmp_path: Path) -> None:
    write(tmp_path / "phrases_no_exclude_test.jsonl", [MEDQA])
    [question] = loaded("medqa", "test", tmp_path)
    assert {label.name: label.meaning for label in question.labels} == OPTIONS
    write(tmp_path / "phrases_no_exclude_test.jsonl", [{**MEDQA, "answer_idx": "E"}])
    with pytest.raises(UserError, match=r"test\.jsonl:1: .*label 'E' is none of a, b, c, d"):
        loaded("medqa", "test", tmp_path)


def test_medqa_in_one_file_of_all_splits(tmp_path: Path) -> None:
    whole = {"name": "medqa", "task_type": "multiple_choice", "dev": [COLLECTED], "test": [{**COLLECTED, "id": 4}]}
    (tmp_path / "medqa.json.gz").write_bytes(gzip.compress(json.dumps(whole).encode()))
    assert [one.id for one in loaded("medqa", "dev", tmp_path)] == ["3"]
    [question] = loaded("medqa", "test", tmp_path)
    assert (question.id, question.label) == ("4", "D")
    whole["test"] = [{**COLLECTED, "answer": "F"}]
    (tmp_path / "medqa.json.gz").write_bytes(gzip.compress(json.dumps(whole).encode()))
    with pytest.raises(UserError, match=r"medqa\.json\.gz.*test 1: .*label 'F'"):
        loaded("medqa", "test", tmp_path)


def test_pubmedqas_official_split(tmp_path: Path) -> None:
    whole = {"11": pubmedqa("Is salt heavy?"), "12": pubmedqa("Is air?", "no"), "13": pubmedqa("Is water?", "maybe")}
    (tmp_path / "ori_pqal.json").write_text(json.dumps(whole))
    assert [one.id for one in loaded("pubmedqa", "all", tmp_path)] == ["11", "12", "13"]
    with pytest.raises(UserError, match=r"no test_ground_truth\.json beside .*split: all"):
        loaded("pubmedqa", "test", tmp_path)
    (tmp_path / "test_ground_truth.json").write_text('{"12": "no"}')
    [question] = loaded("pubmedqa", "test", tmp_path)
    assert (question.id, question.form, question.label) == ("12", "question", "no")
    assert names(question) == ("yes", "no", "maybe") and question.gold_ids == ("pubmedqa:12",)
    assert [(one.id, one.label) for one in loaded("pubmedqa", "train", tmp_path)] == [("11", "yes"), ("13", "maybe")]
    (tmp_path / "test_ground_truth.json").write_text('{"12": "no", "77": "yes"}')
    with pytest.raises(UserError, match="has no 77"):
        loaded("pubmedqa", "test", tmp_path)
    whole["13"]["final_decision"] = "perhaps"
    (tmp_path / "ori_pqal.json").write_text(json.dumps(whole))
    with pytest.raises(UserError, match=r"ori_pqal\.json.*13: .*label 'perhaps' is none of yes, no, maybe"):
        loaded("pubmedqa", "all", tmp_path)


def test_pubmedqa_as_the_hub_has_it(tmp_path: Path) -> None:
    row = {"pubid": 11, "question": CLAIM, "context": {"contexts": ["x"]}, "final_decision": "maybe"}
    write(tmp_path / "all.jsonl", [row])
    [question] = loaded("pubmedqa", "all", tmp_path)
    assert (question.id, question.label, question.gold_ids) == ("11", "maybe", ("pubmedqa:11",))
    assert load_benchmark("pubmedqa").hub_set(SplitConfig(benchmark="pubmedqa", split="all", path="hub")).config


def test_factools_release_has_an_answers_claims_in_one_row(tmp_path: Path) -> None:
    claims = [{"claim": "Salt is white.", "label": True}, {"claim": "Salt is blue.", "label": False}]
    write(tmp_path / "knowledge_qa.jsonl", [{"prompt": "?", "response": "x", "claims": claims, "label": False}] * 2)
    found = loaded("factool_qa", "test", tmp_path)
    assert [(one.id, one.label) for one in found] == [
        ("1.1", "true"),
        ("1.2", "false"),
        ("2.1", "true"),
        ("2.2", "false"),
    ]
    write(tmp_path / "knowledge_qa.jsonl", [{"claims": [claims[0], {"claim": "Salt sings.", "label": "perhaps"}]}])
    with pytest.raises(UserError, match=r"knowledge_qa\.jsonl:1, claim 2: .*'perhaps' is none of true, false"):
        loaded("factool_qa", "test", tmp_path)


def test_factcheckbench_leaves_out_what_has_too_little_evidence(tmp_path: Path) -> None:
    rows = [{"claim": f"{label}?", "label": label, "revised_claim": "x"} for label in ("true", "not_enough_evidence")]
    write(tmp_path / "subtask4_claim_factuality.jsonl", rows)
    assert [one.text for one in loaded("factcheckbench", "test", tmp_path)] == ["true?"]


def test_scifact_with_two_labels_has_the_claims_with_evidence_alone(tmp_path: Path) -> None:
    decided = {**SCIFACT, "id": 2, "evidence": {"31": [{"sentences": [0], "label": "SUPPORT"}]}}
    write(tmp_path / "claims_dev.jsonl", [{**SCIFACT, "evidence": {}}, decided])
    assert [one.id for one in loaded("scifact", "dev_two", tmp_path)] == ["2"]
    assert len(loaded("scifact", "dev", tmp_path)) == 2


def test_scifact_evidence_that_disagrees_is_an_error(tmp_path: Path) -> None:
    both = {"31": [{"sentences": [0], "label": "SUPPORT"}], "32": [{"sentences": [1], "label": "CONTRADICT"}]}
    write(tmp_path / "claims_dev.jsonl", [{**SCIFACT, "evidence": both}])
    with pytest.raises(UserError, match=r"claims_dev\.jsonl:1: .*CONTRADICT and SUPPORT"):
        loaded("scifact", "dev", tmp_path)


def test_every_verification_benchmark_reads_our_own_rows(tmp_path: Path) -> None:
    """Hooks that choose rows or take them apart let ours pass."""
    labels = [{"name": "yes", "meaning": ""}, {"name": "no", "meaning": ""}]
    row = {"id": "a", "text": CLAIM, "form": "claim", "labels": labels, "label": "no"}
    for name in ("feverous", "fever_symmetric", "scifact", "pubmedqa", "medqa", "factool_qa", "factcheckbench"):
        for split in load_benchmark(name).splits:
            write(tmp_path / name / f"{split}.jsonl", [row])
            assert [one.label for one in loaded(name, split, tmp_path / name / f"{split}.jsonl")] == ["no"]
