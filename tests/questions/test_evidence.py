"""A corpus out of benchmarks' evidence: what is in it, what must not be, and that questions name its documents."""

import gzip
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.questions import evidence
from ratchet.core.config import SplitConfig
from ratchet.core.errors import UserError
from ratchet.index_build.documents import read_documents
from ratchet.questions.load import load_questions
from tests.helpers.claims import AVERITEC, CLAIM, FAVIQ, FEVEROUS, LINES, PASSAGE, write
from tests.helpers.experiment import command

STANCES = [
    {"claim": CLAIM, "evidence": "Velmora lies in the sea.", "stance": "completely-support"},
    {"claim": CLAIM, "evidence": "Salt is white.", "stance": "irrelevant"},
    {"claim": "Salt is blue.", "evidence": "Salt is white.", "stance": "refute"},
]


def corpus(tmp_path: Path, *names: str, without: Sequence[str] = ()) -> dict[str, tuple[str, str]]:
    """id to (title, text), as an index would read it."""
    out = tmp_path / "corpus.jsonl.gz"
    evidence(Namespace(names=names, out=out, without=without))
    return {document.id: (document.title, document.text) for _, document in read_documents(out)}


def questions(benchmark: str, split: str, path: Path) -> list[Any]:
    return list(load_questions(SplitConfig(benchmark=benchmark, split=split, path=str(path))))


def test_a_page_of_feverous_is_one_document_in_plain_text(tmp_path: Path) -> None:
    rows = [
        {**FEVEROUS, "evidence": LINES},
        {**FEVEROUS, "id": 6, "evidence": "Velmora\tIt has a [[Port_(town)|port]].\nVelmora\tAn island of salt."},
    ]
    write(tmp_path / "dev.json", rows)
    found = corpus(tmp_path, f"feverous:{tmp_path}")
    assert found == {
        "feverous:Velmora": ("Velmora", "An island of salt.\nIt has a port."),
        "feverous:Ada Pell": ("Ada Pell", "She rules, IPA: [ada]."),
    }
    assert {one for question in questions("feverous", "dev", tmp_path) for one in question.gold_ids} == set(found)


def test_averitecs_answers_and_nothing_that_was_written_to_judge(tmp_path: Path) -> None:
    def answer(text: str, kind: str = "Extractive", **more: str) -> dict[str, str]:
        return {"answer": text, "answer_type": kind, "source_url": "https://check.example/false-claim", **more}

    row = {
        **AVERITEC,
        "label": "Refuted",
        "fact_checking_article": "https://check.example/article",
        "questions": [
            {"question": "Is it large?", "answers": [answer("Ten miles."), answer("Ten miles."), answer("Wide.")]},
            {"question": "Is it dry?", "answers": [answer("No", "Boolean", boolean_explanation="It rains a lot.")]},
            {"question": "Who says so?", "answers": [answer("No answer could be found.", "Unanswerable")]},
            {"question": "What do maps say?", "answers": [answer("Well: Two maps disagree.")]},
        ],
    }
    write(tmp_path / "dev.json", [row])
    found = corpus(tmp_path, f"averitec/dev:{tmp_path}")
    assert sorted(found.values()) == [("Is it dry?", "No It rains a lot."), ("Is it large?", "Ten miles.\nWide.")]
    held = json.dumps(list(found.values()))
    assert not any(text in held for text in (CLAIM, "Refuted", "Two maps disagree.", "check.example", "could be found"))
    assert set(questions("averitec", "dev", tmp_path)[0].gold_ids) == set(found)


def test_pubmedqas_abstracts_without_question_conclusion_and_decision(tmp_path: Path) -> None:
    row = {
        "QUESTION": "Is salt heavy?",
        "CONTEXTS": ["Salt was weighed.", "It weighed a pound."],
        "LABELS": ["METHODS", "RESULTS"],
        "MESHES": ["Salt"],
        "LONG_ANSWER": "Salt seems heavy.",
        "final_decision": "maybe",
    }
    (tmp_path / "ori_pqal.json").write_text(json.dumps({"11": row}))
    text = "METHODS: Salt was weighed.\nRESULTS: It weighed a pound."
    assert corpus(tmp_path, f"pubmedqa/all:{tmp_path}") == {"pubmedqa:11": ("", text)}
    hub = {"pubid": 11, "question": "?", "context": {"contexts": row["CONTEXTS"], "labels": row["LABELS"]}}
    write(tmp_path / "all.jsonl", [{**hub, "long_answer": "Salt seems heavy.", "final_decision": "yes"}])
    assert corpus(tmp_path, f"pubmedqa/all:{tmp_path / 'all.jsonl'}") == {"pubmedqa:11": ("", text)}


def test_the_abstracts_of_test_questions_can_be_left_out(tmp_path: Path) -> None:
    row = {"QUESTION": "Does it?", "CONTEXTS": ["It was measured."], "final_decision": "yes"}
    (tmp_path / "ori_pqal.json").write_text(json.dumps(dict.fromkeys(("11", "12", "13"), row)))
    (tmp_path / "test_ground_truth.json").write_text('{"12": "yes"}')
    names = [f"pubmedqa/all:{tmp_path}"]
    assert set(corpus(tmp_path, *names)) == {"pubmedqa:11", "pubmedqa:12", "pubmedqa:13"}
    left = set(corpus(tmp_path, *names, without=[f"pubmedqa/test:{tmp_path}"]))
    assert left == {"pubmedqa:11", "pubmedqa:13"}


def test_factcheckbenchs_texts_once_and_without_stances(tmp_path: Path) -> None:
    write(
        tmp_path / "one" / "data.jsonl",
        [{"claim": CLAIM, "label": "true"}, {"claim": "Salt is blue.", "label": "false"}],
    )
    with pytest.raises(UserError, match=r"no subtask3_claim_evidence_stance\.jsonl or .* beside data\.jsonl"):
        corpus(tmp_path, f"factcheckbench:{tmp_path / 'one'}")
    write(tmp_path / "factcheck_gpt" / "claim_evidence_stance.jsonl.gz", STANCES)
    found = corpus(tmp_path, f"factcheckbench:{tmp_path / 'one'}")
    assert list(found.values()) == [("", "Velmora lies in the sea."), ("", "Salt is white.")]
    first, second = questions("factcheckbench", "test", tmp_path / "one")
    assert [found[one][1] for one in first.gold_ids] == ["Velmora lies in the sea."], "not what is beside the point"
    assert [found[one][1] for one in second.gold_ids] == ["Salt is white."]


def test_scifacts_corpus_lies_beside_its_claims(tmp_path: Path) -> None:
    write(tmp_path / "claims_dev.jsonl", [{"id": 1, "claim": CLAIM, "evidence": {"31": [{"label": "SUPPORT"}]}}])
    abstract = {"doc_id": 31, "title": "On salt", "abstract": ["Salt is old. ", "So are we."], "structured": False}
    write(tmp_path / "corpus.jsonl", [abstract])
    assert corpus(tmp_path, f"scifact:{tmp_path}") == {"scifact:31": ("On salt", "Salt is old. So are we.")}
    assert questions("scifact", "dev", tmp_path)[0].gold_ids == ("scifact:31",)


def test_faviqs_passages_do_not_say_which_is_which(tmp_path: Path) -> None:
    other = {"id": "100", "title": "Ada", "text": "Ada rules."}
    write(tmp_path / "dev.jsonl", [{**FAVIQ, "negative_evidence": other}])
    assert corpus(tmp_path, f"faviq:{tmp_path}") == {
        "faviq:99": (PASSAGE["title"], PASSAGE["text"]),
        "faviq:100": ("Ada", "Ada rules."),
    }


def test_the_open_split_of_fever_symmetric_leaves_out_what_was_made_up(tmp_path: Path) -> None:
    pairs = (("31", "It rains .", "REFUTES"), ("310000002", "No rain falls .", "SUPPORTS"))
    rows = [{"id": one, "claim": "It is dry.", "evidence": text, "label": label} for one, text, label in pairs]
    write(tmp_path / "fever_symmetric_dev.jsonl", rows)
    assert list(corpus(tmp_path, f"fever_symmetric/dev_open:{tmp_path}").values()) == [("", "It rains .")]
    assert len(corpus(tmp_path, f"fever_symmetric:{tmp_path}")) == 2, "every split that is there"


def test_a_benchmark_without_evidence_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "feverous" / "dev.json", [{**FEVEROUS, "evidence": LINES}])
    write(tmp_path / "hover" / "dev.jsonl", [])
    with pytest.raises(UserError, match=r"hover.*has no texts of evidence \(gold: titles.*remove it"):
        corpus(tmp_path, f"feverous:{tmp_path / 'feverous'}", f"hover:{tmp_path / 'hover'}")
    assert not (tmp_path / "corpus.jsonl.gz").exists()
    write(tmp_path / "feverous" / "dev.json", [FEVEROUS])  # the release's form has ids in place of texts
    with pytest.raises(UserError, match=r"feverous.*has no texts"):
        corpus(tmp_path, f"feverous:{tmp_path / 'feverous'}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fevrous", "did you mean 'feverous'"),
        ("feverous/deev", "no 'deev'.*did you mean 'dev"),
        ("averitec:FOLDER", "no AVeriTeC here; looked for the split train, dev, test"),
        ("feverous/dev:FOLDER", r"dev\.json: row 1: no evidence as FEVEROUS has it .*no tab"),
    ],
)
def test_bad_names_and_files_say_the_way_out(tmp_path: Path, name: str, message: str) -> None:
    folder = tmp_path / name.partition("/")[0].partition(":")[0]
    write(folder / "dev.json" if name.startswith("feverous") else folder / "x", [{**FEVEROUS, "evidence": "no tab"}])
    with pytest.raises(UserError, match=message):
        corpus(tmp_path, name.replace("FOLDER", str(folder)))


def test_the_command(tmp_path: Path) -> None:
    write(tmp_path / "dev.json", [{**FEVEROUS, "evidence": LINES}])
    out = tmp_path / "new" / "corpus.jsonl.gz"
    words = ["-m", "ratchet", "questions", "evidence", f"feverous:{tmp_path}", "--out"]
    done = command(*words, str(out))
    assert done.returncode == 0 and "2 documents" in done.stdout and "index.documents" in done.stdout
    first = out.read_bytes()
    assert set(json.loads(gzip.decompress(first).splitlines()[0])) == {"id", "title", "text"}
    assert command(*words, str(out)).returncode == 0
    assert out.read_bytes() == first, "equal files, equal bytes: an index need not be built again"
    wrong = command(*words, str(tmp_path / "x.txt"))
    assert wrong.returncode == 2 and "must end in .jsonl" in wrong.stdout
