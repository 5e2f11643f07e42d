"""The configs of the papers: what they set is what the paper has, and what differs from it has a config of its own."""

from pathlib import Path

import pytest

from ratchet.core.config import SPLITS, Config, SplitConfig, load_config

PAPERS = Path(__file__).parents[2] / "configs" / "papers"


def config(name: str) -> Config:
    return load_config(PAPERS / f"{name}.yaml")


@pytest.mark.parametrize("path", sorted(PAPERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_one_is_a_valid_config_with_a_run_folder_of_its_own(path: Path) -> None:
    assert load_config(path).run == f"runs/{path.stem}"


def test_mrags_index_is_lion_and_bm25_differs_in_nothing_else() -> None:
    paper, bm25 = config("mrag"), config("mrag_bm25")
    assert (paper.index.kind, bm25.index.kind) == ("sparse", "bm25")
    assert paper.index.encoder is not None and "Lion-SP-1B" in paper.index.encoder.path

    def rest(one: Config) -> str:
        return one.model_dump_json(exclude={"run", "index"}).replace("mrag_bm25", "mrag")

    assert rest(paper) == rest(bm25)


def test_mrag_decodes_freely_draws_nuggets_for_every_run_and_keeps_responses_at_the_end_of_the_budget() -> None:
    paper = config("mrag")
    assert paper.system.malformed != "constrain" and not paper.rewards.constrained
    assert all(
        one.malformed != "constrain" for one in paper.evaluation.baselines.values() if one.name != "no_retrieval"
    )
    assert (paper.rewards.extracted, paper.rewards.runs.least, paper.rewards.runs.most) == ("per_run", 5, 5)
    assert paper.rewards.select.keep_status == ("finished", "out_of_budget")
    assert (paper.training.choose_by, paper.training.eval_steps, paper.training.max_steps) == ("reward", 100, 5000)


def test_mrag_keeps_tied_trajectories_without_a_threshold_and_trains_on_all_of_them() -> None:
    paper = config("mrag")
    select = paper.rewards.select
    assert (select.ties, select.min_reward, select.similarity) == (3, None, None) and not select.drop_all_equal
    assert paper.training.dev_fraction == 0


def test_mrags_questions_are_of_the_papers_numbers_and_are_those_that_are_generated() -> None:
    for paper in (config("mrag"), config("mrag_bm25")):
        assert paper.generation is not None
        assert (paper.generation.questions["train"], paper.generation.questions["test"]) == (3500, 1000)
        for name in SPLITS:
            assert getattr(paper.questions, name) == SplitConfig(path=f"{paper.generation.out}/{name}.jsonl")
    assert config("mrag_published").questions == config("mrag").questions


def test_mrags_published_code_is_one_config() -> None:
    published = config("mrag_published")
    assert published.rewards.weights == {"relevance": 1.0, "correctness": 4.0, "faithfulness": 1.0}
    assert set(published.rewards.select.min_scores.items()) == {(name, 0.5) for name in published.rewards.weights}
    assert published.rewards.select.drop_all_equal
    assert (published.rewards.extracted, published.rewards.extraction_temperature) == ("once", 0.0)
    assert published.rewards.omitted_claims == "neutral"
    assert published.system.settings == {"question": "user", "found": "all"}
    assert (published.system.malformed, published.system.reasks) == ("redraw", 9)
    assert published.rewards.select.prefer == ("correctness", "faithfulness", "relevance")
    assert published.training.loss_on == "sequence"


@pytest.mark.parametrize("name", ["awe", "awe_drag"])
def test_awe_is_measured_on_dev_sets_and_chosen_on_other_questions(name: str) -> None:
    awe = config(name)
    asked = {one.benchmark: one.split for one in (awe.questions.test, *awe.evaluation.benchmarks.values())}
    dev = dict.fromkeys(("nq", "triviaqa", "twowiki", "hotpotqa"), "dev")
    assert asked == {**dev, "popqa": "test", **({"strategyqa": "train"} if name == "awe_drag" else {})}
    train, chosen = awe.questions.train, awe.questions.dev
    assert (train.split, chosen.split) == ("train", "train")
    assert train.rows is not None and chosen.rows is not None and train.rows[1] <= chosen.rows[0]


def test_mermaids_claims_come_in_sequence_and_every_benchmark_in_three_orders() -> None:
    paper = config("mermaid")
    assert paper.memory is not None and paper.memory.sequential
    asked = [("hover", paper.questions.test), *paper.evaluation.benchmarks.items()]
    orders = {(name.partition(",")[0], split.order) for name, split in asked}
    benchmarks = ("factool_qa", "bingcheck", "factcheckbench", "scifact", "hover")
    assert orders == {(name, order) for name in benchmarks for order in ("file", "shuffled", "clustered")}


def test_awe_by_drags_script_is_greedy_and_asks_for_the_answer_behind_the_mark() -> None:
    awe = config("awe_drag")
    assert awe.evaluation.temperature == 0.0
    systems = {"AwE": awe.system, **awe.evaluation.baselines}
    assert {one.role("default").max_tokens for one in systems.values()} == {256}
    marked = {name for name, one in systems.items() if one.settings.get("answer_form") == "marked"}
    assert marked == {
        "AwE", "AwE, knowledge first", "AwE, retrieval first", "Naive-Gen", "Naive-RAG", "Iter-RetGen"
    }  # fmt: skip
    assert systems["FLARE"].settings["theta"] == 0.2 and systems["FLARE"].settings["iterations"] == 5
    assert systems["IRCoT"].settings["reader"] == "never"
    assert awe.evaluation.baselines.keys() == config("awe").evaluation.baselines.keys()


def test_tool_mads_agents_search_vectors_and_its_closed_model_plays_the_same_rows() -> None:
    paper = config("tool_mad")
    closed = load_config(PAPERS.parent / "closed/tool_mad_gpt_4o_mini.yaml")
    for one in (paper, closed, config("tool_mad_medqa"), config("tool_mad_pubmedqa")):
        assert one.index.kind == "dense"
    assert (closed.models["agent"].path, closed.models["agent"].engine) == ("gpt-4o-mini", "chat-api")
    assert (closed.system, closed.index, closed.sources) == (paper.system, paper.index, paper.sources)
    assert closed.evaluation.baselines == paper.evaluation.baselines
    assert closed.evaluation.benchmarks == paper.evaluation.benchmarks
    assert closed.questions == paper.questions


def test_the_small_config_of_mrags_task_has_the_rows_of_figure_2_and_of_section_4() -> None:
    small = load_config(PAPERS.parent / "small/datamorgana.yaml")
    assert small.evaluation.baselines.keys() == config("mrag").evaluation.baselines.keys()
    long = small.evaluation.baselines["mRAG, long responses"]
    assert long.settings == {**small.system.settings, "length": "long"}
