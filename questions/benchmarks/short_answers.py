"""The question-answering benchmarks with short answers, most of which FlashRAG (arXiv 2405.13576) has as well.

Their corpora, mostly Wikipedia's pages, are yours to bring. HotpotQA, 2WikiMultiHopQA and MuSiQue name the pages that
hold an answer by title. Rows with paragraphs of their own also make a corpus (`ratchet questions evidence`), and name
its documents: `hotpotqa:` and the title, or of MuSiQue, where one page gives several paragraphs, a key of the content.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from ratchet.core.errors import UserError
from ratchet.core.records import Document
from ratchet.questions.benchmark import Benchmark, FieldCompleter, HubDataset
from ratchet.questions.evidence import document_by_content
from ratchet.questions.formats import FLASHRAG, HOTPOT, Format, Row, json_list, texts
from ratchet.questions.load import read_rows


def _on_flashrag(name: str, *splits: str) -> HubDataset:
    return HubDataset("RUC-NLPIR/FlashRAG_datasets", name, {split: split for split in splits})


def _plain(question: str, answer: str) -> Format:
    """The official format whose rows have no more than these two fields."""
    return Format("official", (question, answer), lambda row: {"text": row[question], "answers": texts(row[answer])})


def _popqa(row: Row) -> Row:
    # The row names the Wikipedia page of its subject, but nobody checked that the answer is there: no gold.
    answers = texts(json_list(row["possible_answers"]))
    return {"id": str(row["id"]), "text": row["question"], "answers": answers, "kind": row.get("prop") or ""}


def _triviaqa(row: Row) -> Row:
    answer = row["Answer"]  # the normalised aliases count as well, as in the official scorer
    answers = texts(answer["Value"], answer.get("Aliases"), answer.get("HumanAnswers"), answer.get("NormalizedAliases"))
    return {"id": row["QuestionId"], "text": row["Question"], "answers": answers}


def _triviaqa_on_hub(row: Row) -> Row:
    answer = row["answer"]
    answers = texts(answer["value"], answer.get("aliases"), answer.get("normalized_aliases"))
    return {"id": row["question_id"], "text": row["question"], "answers": answers}


def _paragraphs(name: str) -> Callable[[Row], list[Document]]:
    """Give the paragraphs of a row of HotpotQA, or of what follows it: [[title, sentences], ...] as released,
    {"title": [...], "sentences": [...]} as the hub has them, or either as JSON in a text."""

    def documents(row: Row) -> list[Document]:
        more = row.get("metadata") or {}
        found = row.get("context") or (json.loads(more) if isinstance(more, str) else more).get("context") or ()
        found = json.loads(found) if isinstance(found, str) else found
        if isinstance(found, dict):
            found = zip(found["title"], found.get("sentences") or found["content"], strict=True)
        return [Document(f"{name}:{title}", " ".join(map(str.strip, sentences)), title) for title, sentences in found]

    return documents


def _naming_paragraphs(name: str, format: Format) -> Format:
    """The format with the ids of the gold documents, where a row has its paragraphs."""
    documents = _paragraphs(name)

    def read(row: Row) -> Row:
        fields = format.read(row)
        gold = tuple(f"{name}:{title}" for title in fields["gold_titles"]) if documents(row) else ()
        return fields | {"gold_ids": gold}

    return Format(format.name, format.keys, read)


def _musique_documents(row: Row) -> Iterable[Document]:
    return [_musique_document(one) for one in json_list(row.get("paragraphs", []))]


def _musique_document(paragraph: Row) -> Document:
    return document_by_content("musique", paragraph["paragraph_text"], paragraph["title"])


def _musique(row: Row) -> Row:
    if not row.get("answerable", True):
        raise ValueError("an unanswerable question: this is MuSiQue-Full; take the musique_ans files")
    supporting = [one for one in json_list(row["paragraphs"]) if one.get("is_supporting")]
    return {
        "id": row["id"],
        "text": row["question"],
        "answers": texts(row["answer"], row.get("answer_aliases")),
        "gold_titles": texts([one["title"] for one in supporting]),
        "gold_ids": texts([_musique_document(one).id for one in supporting]),
        "kind": row["id"].partition("__")[0],
    }


def _with_aliases(folder: Path) -> FieldCompleter:
    # 2WikiMultiHopQA has aliases of answers in id_aliases.json, beside the questions.
    path = folder / "id_aliases.json"
    aliases: dict[str, Row] = {}
    for place, row in read_rows(path) if path.is_file() else ():
        if "Q_id" not in row or "aliases" not in row:
            raise UserError(f"{place}: no Q_id and aliases; get the file again, or remove it to go without aliases")
        aliases[row["Q_id"]] = row

    def complete(row: Row, fields: Row) -> Row:
        known = aliases.get(row.get("answer_id") or "", {})
        return fields | {"answers": texts(fields["answers"], known.get("aliases"))} if known else fields

    return complete


BENCHMARKS = {
    # Kwiatkowski et al. 2019; Lee et al. 2019, arXiv 1906.00300
    "nq": Benchmark(
        title="NQ",
        about="questions that people typed into a search engine, with short answers; 79,168 / 8,757 / 3,610",
        licence="CC BY-SA 3.0 (the release)",
        source="FlashRAG's data sets, or google-research-datasets/natural-questions (nq_open)",
        gold="none",
        splits={
            "train": ("NQ-open.train.jsonl",),
            "dev": (),
            "test": ("NQ-open.dev.jsonl",),  # the release's dev is what everyone tests on
        },
        default_split="test",
        hub=(
            _on_flashrag("nq", "train", "dev", "test"),
            HubDataset("google-research-datasets/nq_open", None, {"train": "train", "test": "validation"}),
        ),
        formats=(FLASHRAG, _plain("question", "answer")),
    ),
    # Joshi et al. 2017, arXiv 1705.03551
    "triviaqa": Benchmark(
        title="TriviaQA",
        about="trivia questions with many accepted answers; 78,785 / 8,837 / 11,313",
        licence="not stated for the questions; the code is Apache-2.0",
        source="FlashRAG's data sets, or nlp.cs.washington.edu/triviaqa (unfiltered)",
        gold="none",
        splits={
            # The release's train holds FlashRAG's dev, and its own test is secret.
            "train": ("triviaqa-unfiltered/unfiltered-web-train.json", "unfiltered-web-train.json"),
            "dev": (),
            "test": ("triviaqa-unfiltered/unfiltered-web-dev.json", "unfiltered-web-dev.json"),
        },
        default_split="test",
        hub=(
            _on_flashrag("triviaqa", "train", "dev", "test"),
            HubDataset("mandarjoshi/trivia_qa", "unfiltered.nocontext", {"train": "train", "test": "validation"}),
        ),
        formats=(
            FLASHRAG,
            Format("official", ("Question", "QuestionId", "Answer"), _triviaqa),
            Format("hub", ("question", "question_id", "answer"), _triviaqa_on_hub),
        ),
    ),
    # Mallen et al. 2023, arXiv 2212.10511. It has one split: take `rows` of it to train on, and others to test.
    "popqa": Benchmark(
        title="PopQA",
        about="questions from 16 templates about entities of all popularities; 14,267 in one split; kind: the relation",
        licence="not stated for the questions; the code is MIT",
        source="FlashRAG's data sets, or AlexTMallen/adaptive-retrieval (data/popQA.tsv)",
        gold="none",
        splits={"test": ("popQA.tsv", "data/popQA.tsv")},
        default_split="test",
        hub=(_on_flashrag("popqa", "test"), HubDataset("akariasai/PopQA", None, {"test": "test"})),
        formats=(FLASHRAG, Format("official", ("id", "question", "possible_answers"), _popqa)),
    ),
    # Press et al. 2023, arXiv 2210.03350. Small: a difference of ten points is within its noise.
    "bamboogle": Benchmark(
        title="Bamboogle",
        about="two-hop questions that a search engine answered wrongly; 125 in one split",
        licence="MIT",
        source="FlashRAG's data sets, or ofirpress/self-ask (a table)",
        gold="none",
        splits={"test": ("Bamboogle Prerelease - Sheet1.csv", "bamboogle.csv")},
        default_split="test",
        hub=(_on_flashrag("bamboogle", "test"), HubDataset("chiayewken/bamboogle", None, {"test": "test"})),
        formats=(FLASHRAG, _plain("Question", "Answer")),
    ),
    # Yang et al. 2018, arXiv 1809.09600. Distractor and fullwiki ask the same.
    "hotpotqa": Benchmark(
        title="HotpotQA",
        about="two-hop questions that people wrote, bridge and comparison; 90,447 / 7,405",
        licence="CC BY-SA 4.0",
        source="FlashRAG's data sets, or hotpotqa.github.io",
        gold="titles of Wikipedia pages; document ids where rows have paragraphs",
        splits={
            "train": ("hotpot_train_v1.1.json",),
            "dev": ("hotpot_dev_distractor_v1.json", "hotpot_dev_fullwiki_v1.json"),
        },
        default_split="dev",
        hub=(
            _on_flashrag("hotpotqa", "train", "dev"),
            HubDataset("hotpotqa/hotpot_qa", "distractor", {"train": "train", "dev": "validation"}),
        ),
        formats=tuple(_naming_paragraphs("hotpotqa", known) for known in (FLASHRAG, HOTPOT)),
        documents=_paragraphs("hotpotqa"),
    ),
    # Ho et al. 2020, arXiv 2011.01060
    "twowiki": Benchmark(
        title="2WikiMultiHopQA",
        about="two-hop and comparison questions from templates over Wikidata; 167,454 / 12,576 "
        "(FlashRAG: 15,000 / 12,576)",
        licence="Apache-2.0 (the repository)",
        source="FlashRAG's data sets, or Alab-NII/2wikimultihop (data_ids, with aliases)",
        gold="titles of Wikipedia pages; document ids where rows have paragraphs",
        splits={
            "train": ("train.json", "2wikimultihopqa/train.jsonl"),
            "dev": ("dev.json", "2wikimultihopqa/dev.jsonl"),
        },
        default_split="dev",
        hub=(_on_flashrag("2wikimultihopqa", "train", "dev"),),
        formats=tuple(_naming_paragraphs("twowiki", known) for known in (FLASHRAG, HOTPOT)),
        documents=_paragraphs("twowiki"),
        beside=_with_aliases,
    ),
    # MuSiQue-Ans (Trivedi et al. 2022, arXiv 2108.00573). MuSiQue-Full, half of it unanswerable, is not supported.
    "musique": Benchmark(
        title="MuSiQue",
        about="questions of two to four hops, made so that no hop can be skipped; 19,938 / 2,417; kind: 2hop, 3hop1...",
        licence="CC BY 4.0",
        source="FlashRAG's data sets, or StonyBrookNLP/musique (musique_ans)",
        gold="official: titles and document ids of the supporting paragraphs; FlashRAG: none",
        splits={"train": ("musique_ans_v1.0_train.jsonl",), "dev": ("musique_ans_v1.0_dev.jsonl",)},
        default_split="dev",
        hub=(
            HubDataset("dgslibisey/MuSiQue", None, {"train": "train", "dev": "validation"}),
            _on_flashrag("musique", "train", "dev"),
        ),
        formats=(FLASHRAG, Format("official", ("id", "question", "answer", "paragraphs"), _musique)),
        documents=_musique_documents,
    ),
}
