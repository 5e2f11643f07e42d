"""`ratchet report --follow`: what the server gives, that the run is only read, and the page in a browser."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ratchet.commands.recording import recorded_stages
from ratchet.core.config import Config
from ratchet.core.errors import UserError
from ratchet.core.files import write_jsonl
from ratchet.core.runfolder import RoundFolder, RunFolder
from ratchet.report import follow
from ratchet.sampling.store import TrajectoryStore
from tests.helpers.browser import needs_chromium
from tests.helpers.commands import command_of
from tests.helpers.handmade_run import add_sampling, make_config, make_run
from tests.helpers.reported import unpack
from tests.helpers.stored import store
from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.waiting import wait_for
from tests.helpers.watched import watched

main = command_of("report")

pytestmark = pytest.mark.server


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "EVERY", 0.3)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, RoundFolder]:
    folder = tmp_path_factory.mktemp("run")
    config, number_one = make_run(folder, train=6, test=6)
    model = config.models["agent"].model_copy(update={"path": str(save_tiny_tokenizer(folder / "model"))})
    return config.model_copy(update={"models": {"agent": model}}), number_one


@pytest.fixture(scope="module")
def client(finished: tuple[Config, RoundFolder]) -> Iterator[httpx.Client]:
    with watched(finished[0]) as client:
        wait_for(lambda: index_of(client)["sections"][1:])
        yield client


def index_of(client: httpx.Client) -> Any:
    answer = client.get("/")
    assert answer.status_code == 200, answer.text
    found = re.search(r'<script type="text/plain" id="index">(.*?)</script>', answer.text)
    assert found
    return unpack(found[1])


def now_of(client: httpx.Client) -> str:
    """The text of the part that says what the run is doing."""
    section = client.get("/").text.partition('<section id="now">')[2].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]*>", " ", section).split())


def now_with(client: httpx.Client, words: str) -> str:
    """That text, as soon as it holds the words."""
    text = now_of(client)
    return text if words in text else ""


def test_a_question_comes_with_its_scores_messages_and_what_was_trained(
    client: httpx.Client, finished: tuple[Config, RoundFolder]
) -> None:
    _, folder = finished
    selection = folder.read_selection()
    assert selection is not None
    [choice] = [choice for choice in selection.questions if choice.kept][:1]
    asked = {"section": "sampled", "question": choice.question_id}
    found = client.get("/details", params=asked).json()
    stored = {t.key: t for t in TrajectoryStore(folder.trajectories).read(list(choice.rewards))}
    assert {run["key"]: run["answer"] for run in found["runs"]} == {key: t.answer for key, t in stored.items()}
    run = next(run for run in found["runs"] if run["key"] == choice.kept[0])
    assert {score["name"] for score in run["scores"]} == {"em", "f1", "nugget_containment", "lexical_support"}
    assert any(kind == "trained" for talk in run["conversations"] for kind, _, _ in talk["spans"])
    assert all(pieces for talk in run["conversations"] for _, _, pieces in talk["spans"])
    assert found["notes"] == [] and set(run["support"]) <= set(found["passages"])
    missing = client.get("/details", params={**asked, "question": "nothing"})
    assert missing.status_code == 404 and "nothing" in missing.json()["error"]


def test_a_run_that_is_sampled_is_followed(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=4)
    folder = RunFolder(config.folder).round(1)
    made = add_sampling(config, folder, samples=5)
    store(folder.trajectories, made[:6], samples=5, missing=len(made) - 6)
    plan = json.loads((folder.trajectories / "manifest.json").read_bytes()) | {"keys": [t.key for t in made]}
    (folder.trajectories / "manifest.json").write_text(json.dumps(plan))
    with watched(config) as client:
        first = wait_for(lambda: now_with(client, "6 of 20 trajectories"))
        assert "nothing is running Sample, round 1" in first and "1 index to do" in first
        assert "1 sample part" in first and "1 train to do" in first
        assert 'id="results"' not in client.get("/").text and 'href="#results"' not in client.get("/").text
        write_jsonl(folder.trajectories / "part-1.jsonl", made[6:12])
        wait_for(lambda: now_with(client, "12 of 20 trajectories"))
        assert sum(len(q["runs"]) for q in index_of(client)["sections"][0]["questions"]) == 12


def test_a_training_is_followed_by_its_steps(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=3)
    folder = RoundFolder(config.folder / "round-1")
    with recorded_stages(config, "sample", "score"):
        add_sampling(config, folder, samples=2)
    folder.training.mkdir(parents=True)
    lines = [{"step": 0, "dev_loss": 0.9}, {"step": 1, "loss": 1.25}, {"step": 2, "loss": 0.5}]
    (folder.training / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with watched(config) as client:
        wait_for(lambda: now_with(client, "Train, round 1 step 2"))


def test_the_ledger_says_what_is_done_and_the_run_folder_is_only_read(tmp_path: Path) -> None:
    config = make_config(tmp_path, train=3)
    with recorded_stages(config, "sample"):
        add_sampling(config, RoundFolder(config.folder / "round-1"), samples=2)
    before = {path: path.stat().st_mtime_ns for path in config.folder.rglob("*")}
    with watched(config) as client:
        wait_for(lambda: index_of(client)["sections"])
        assert "1 sample done trajectories 6" in now_of(client) and "1 train to do" in now_of(client)
    assert {path: path.stat().st_mtime_ns for path in config.folder.rglob("*")} == before


def test_only_pages_of_this_machine_may_ask_and_nothing_can_be_changed(client: httpx.Client) -> None:
    assert client.post("/", headers={"Content-Type": "application/json"}).status_code == 501
    for host in ("evil.example", "127.0.0.1:80@evil.example", "evil.example#@127.0.0.1", "[", ""):
        assert client.get("/", headers={"Host": host}).status_code in (400, 403)
    for address in ("/", "/details"):
        answer = client.get(address)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', client.get("/").text)
    assert policy and "default-src &#39;none&#39;; script-src &#39;sha256-" in policy[1]
    assert client.get("/details").status_code == 404


def test_the_command_names_a_run_that_is_not_there(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(config.model_dump_json(exclude_unset=True))))
    with pytest.raises(UserError, match="there is no such run folder"):
        main(["--config", str(path), "--follow"])
    config.folder.mkdir()
    with pytest.raises(UserError, match="no records of this round"):
        main(["--config", str(path), "--follow", "--round", "2"])
    with pytest.raises(UserError, match="--port 70000: cannot listen there"):
        main(["--config", str(path), "--follow", "--port", "70000"])


# In a browser


@pytest.fixture
def page(browser: Any, client: httpx.Client) -> Iterator[Any]:
    """The page; what its script or its policy complains about fails the test."""
    problems: list[str] = []
    with browser.new_page(viewport={"width": 1300, "height": 900}) as opened:
        opened.on("console", lambda said: problems.append(said.text) if said.type in ("error", "warning") else None)
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.goto(str(client.base_url))
        yield opened
    assert problems == []


@pytest.mark.slow
@needs_chromium
def test_what_was_opened_stays_open_while_the_page_is_refreshed(page: Any) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.locator("#runs .messages summary").first.click()
    page.locator("#endings details.more summary").first.click()
    with page.expect_response(lambda answer: answer.url.endswith("/")):
        pass
    page.wait_for_timeout(300)
    assert page.locator("#runs .messages[open]").count() == 1
    assert page.locator("#endings details[open]").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.slow
@needs_chromium
def test_new_trajectories_appear_without_a_reload(browser: Any, tmp_path: Path) -> None:
    config = make_config(tmp_path, train=3)
    folder = RunFolder(config.folder).round(1)
    folder.path.mkdir(parents=True)
    with watched(config) as client, browser.new_page() as page:
        page.goto(str(client.base_url))
        page.locator("#now h2").wait_for()
        assert page.locator("#trajectories").count() == 0
        made = add_sampling(config, folder, samples=2)
        page.locator("#questions button").first.wait_for()
        page.locator("#runs .answer").first.wait_for()
        assert page.locator("#question-count").text_content() == f"3 of 3 questions, {len(made)} trajectories"
