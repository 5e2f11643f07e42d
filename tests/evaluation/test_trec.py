"""Measures of runs against the definitions, and the table of their comparison."""

import json
import math
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ratchet.commands.main import run
from ratchet.core.errors import UserError
from ratchet.evaluation.measures.statistics import holm, paired_difference
from ratchet.evaluation.trec import measure_runs, parse_measures

QRELS = {"q1": {"a": 2, "b": 1, "c": 0}, "q2": {"d": 1, "e": 1}, "q3": {"f": 1}}
RUN = {"q1": ["c", "a", "x"], "q2": ["d", "y", "e"], "q9": ["a"]}
BETTER = {"q1": ["a", "b"], "q2": ["e", "d"], "q3": ["f"]}


def test_measures_are_those_of_the_definitions() -> None:
    """A query without results counts as 0, and one without judgements not at all."""
    first = (2 / math.log2(3)) / (2 + 1 / math.log2(3))
    second = (1 + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    wanted = {
        "nDCG@10": [first, second, 0.0],
        "R@2": [1 / 2, 1 / 2, 0.0],
        "RR@10": [1 / 2, 1.0, 0.0],
        "AP": [1 / 2 / 2, (1 + 2 / 3) / 2, 0.0],
    }
    results = measure_runs({"r": RUN}, QRELS, parse_measures("nDCG@10, R@2,MRR@10,MAP,AP"))
    assert [one.measure for one in results] == list(wanted)
    for one in results:
        assert one.estimate.mean == pytest.approx(sum(wanted[one.measure]) / 3) and one.estimate.n == 3
        assert one.difference is None and one.p is None


def test_equal_scores_are_ranked_alike_by_every_measure(tmp_path: Path) -> None:
    """What computes RR@1 sorts equal scores by ascending id, and what computes P@1 by descending id, as trec_eval."""
    (tmp_path / "run").write_text("q Q0 a 1 1 x\nq Q0 b 2 1 x\n")
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    from ratchet.retrieval.trec import read_qrels, read_run

    results = measure_runs(
        {"r": read_run(tmp_path / "run")}, read_qrels(tmp_path / "qrels"), parse_measures("RR@1,P@1")
    )
    assert [one.estimate.mean for one in results] == [1.0, 1.0]


def test_other_runs_are_compared_with_the_first() -> None:
    results = measure_runs({"r": RUN, "better": BETTER, "same": RUN}, QRELS, parse_measures("RR@10,R@2"))
    tested = [one for one in results if one.difference is not None]
    assert [(one.measure, one.run) for one in tested] == [
        (measure, name) for measure in ("RR@10", "R@2") for name in ("better", "same")
    ]
    assert tested[0].difference == paired_difference([0.5, 1.0, 0.0], [1.0, 1.0, 1.0], 0)
    assert [one.p for one in tested] == holm([one.difference.p or 0.0 for one in tested if one.difference])


@pytest.mark.parametrize("text", ["nDCG@", "P", "recall@3", "nDCG@10,", "alpha_nDCG@10", "__import__('os')"])
def test_a_measure_that_cannot_be_computed_is_named(text: str) -> None:
    with pytest.raises(UserError, match=r"--measures: .* cannot be computed"):
        parse_measures(text)


def test_what_would_end_the_process_is_refused() -> None:
    with pytest.raises(UserError, match=r"'P@0' cannot be computed \(a cutoff is 1 or more"):
        parse_measures("nDCG@10,P@0")


@pytest.mark.skipif(shutil.which("perl") is None, reason="ERR is computed by gdeval.pl")
def test_a_program_that_takes_numbers_as_queries_gets_them() -> None:
    """gdeval.pl also drops what stands before a minus sign. ERR (Chapelle et al. 2009): its highest grade is 4."""
    queries = ({"q-1": {"a": 4, "b": 1}, "x": {"c": 1}}, {"q-1": ["b", "a"], "x": ["d"]})
    (one,) = measure_runs({"r": queries[1]}, queries[0], parse_measures("ERR@10"))
    assert one.estimate.mean == pytest.approx((1 / 16 + 15 / 16 * 15 / 16 / 2) / 2, abs=1e-5)


def test_a_failure_of_ir_measures_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> Any:
        raise subprocess.CalledProcessError(25, ["perl"])

    monkeypatch.setattr("ir_measures.iter_calc", fail)
    with pytest.raises(UserError, match=r"^r: ir_measures cannot compute ERR@10 .Command '\['perl'\]' returned"):
        measure_runs({"r": RUN}, QRELS, ["ERR@10"])


def test_measures_may_have_parameters() -> None:
    assert [str(one) for one in parse_measures("P(rel=2)@5,SetF(beta=2.0,rel=1)")] == ["P(rel=2)@5", "SetF(beta=2.0)"]


def beir(folder: Path) -> Path:
    """A BEIR folder with graded judgements, an id with a blank, and a document without text."""
    rows = [
        {"_id": "a b", "text": "Ash trees.", "title": "Ash"},
        {"_id": "c", "text": "Birch and ash.", "metadata": {}},
    ]
    (folder / "qrels").mkdir(parents=True)
    corpus = [*rows, {"_id": "empty", "title": "", "text": ""}, *({"_id": f"x{i}", "text": "Fir."} for i in range(4))]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in corpus))
    queries = [{"_id": "1", "text": "ash"}, {"_id": "2", "text": "birch"}, {"_id": "3", "text": "unjudged"}]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta b\t2\n1\tc\t1\n1\tx0\t0\n2\tc\t1\n")
    return folder


@pytest.mark.slow
def test_a_beir_folder_becomes_a_table_in_three_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, config, out = beir(tmp_path / "set"), tmp_path / "set.yaml", str(tmp_path / "out.trec")
    config.write_text(f"index: {{path: {tmp_path}/index, documents: [set], tokenizer: words}}")
    named = ["--config", str(config)]
    run(["index", *named])
    run(["search", *named, "--queries", str(folder / "queries.jsonl"), "--k", "10", "--run", out])
    assert "3 queries" in capsys.readouterr().out
    run(["evaluate", "retrieval", "--qrels", str(folder / "qrels" / "test.tsv"), "--run", out])
    table = capsys.readouterr().out
    assert "2 queries" in table and "nDCG@10" in table and "1.0000" in table
    # The questions of a split name their gold documents.
    splits = ["--set", f"questions={{test: {{benchmark: beir, path: {folder}}}}}"]
    run(["search", *named, *splits, "--queries", "test", "--run", str(tmp_path / "b.trec")])
    run(["evaluate", "retrieval", *named, *splits, "--run", out, "--run", str(tmp_path / "b.trec"), "--measures", "AP"])
    table = capsys.readouterr().out
    assert "gold documents of test" in table and "+0.0000" in table


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.trec"
    path.write_text("q7 Q0 a 1 1 x\n")
    (tmp_path / "qrels").write_text("q 0 b 1\n")
    words = ["evaluate", "retrieval", "--run", str(path)]
    with pytest.raises(UserError, match="name the judgements with --qrels"):
        run(words)
    with pytest.raises(UserError, match="--qrels and --split both"):
        run([*words, "--qrels", str(tmp_path / "qrels"), "--split", "dev"])
    with pytest.raises(UserError, match=r"a\.trec: has none of the 1 judged queries"):
        run([*words, "--qrels", str(tmp_path / "qrels")])
    (tmp_path / "x.yaml").write_text("index: {path: x}")
    search = ["search", "--config", str(tmp_path / "x.yaml")]
    for more in ([], ["--run", "x"], ["--queries", "x"], ["ash", "--queries", "x", "--run", "y"]):
        with pytest.raises(UserError, match="--queries FILE and --run FILE"):
            run([*search, *more])
    with pytest.raises(UserError, match="--queries none: no such file"):
        run([*search, "--queries", "none", "--run", str(tmp_path / "y")])
