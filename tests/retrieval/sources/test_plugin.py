"""A source outside our tree: its settings are checked by its own class, and its code is in its digest."""

from pathlib import Path

import pytest
import yaml

from ratchet.commands.config import open_config
from ratchet.core.config import PluginConfig
from ratchet.core.errors import UserError
from ratchet.retrieval.retriever import SourceError
from ratchet.retrieval.sources.registry import open_sources
from ratchet.retrieval.sources.source import ToolError
from tests.helpers.playing import Shelf
from tests.helpers.reward_cases import make_config

SOURCE = """\
from ratchet.core.config import Section
from ratchet.core.records import Passage
from ratchet.retrieval.sources.source import SearchSource


class Settings(Section):
    shelf: str = "A"


class Source(SearchSource):
    about = "Searches a shelf."

    def __init__(self, name, settings):
        self.name, self.settings = name, settings

    async def search(self, query, k, offset=0):
        text = f"{query} is on shelf {self.settings.shelf}"
        return [Passage(id="p", document_id="d", text=text)][offset : offset + k]
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE)
    return tmp_path


async def test_it_is_searched_and_called_as_a_tool(mine: Path) -> None:
    config = PluginConfig(name="./mine.py", settings={"shelf": "B"})
    source = open_sources({"shelf": config}, Shelf({}))["shelf"]
    assert [passage.text for passage in await source.search("Inari", 3)] == ["Inari is on shelf B"]
    assert [(tool.name, tool.about) for tool in await source.tools()] == [("shelf", "Searches a shelf.")]
    assert (await source.call("shelf", {"query": "Inari"}, 3)).passages[0].document_id == "d"
    await source.close()


def test_its_code_and_settings_are_in_its_digest_and_its_place_is_not(mine: Path) -> None:
    def digest(name: str = "./mine.py", **settings: str) -> str:
        return open_sources({"shelf": PluginConfig(name=name, settings=settings)}, Shelf({}))["shelf"].digest

    first = digest()
    assert digest(str(mine / "mine.py")) == digest(shelf="A") == first != digest(shelf="B")
    (mine / "mine.py").write_text(SOURCE.replace("is on", "lies on"))
    assert digest() != first


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"failed \(ZeroDivisionError: division by zero; mine\.py, line 17\)"),
        ("raise SystemExit(0)", r"failed \(SystemExit: 0; mine\.py, line 17\)"),
        ("return ['a']", r"\(TypeError: it returned (list|tuple) and not a list of Passage\)"),
        ("return None", r"\(TypeError: (it returned NoneType and not a list|'NoneType' object)"),
    ],
)
async def test_its_faults_are_those_of_a_service(mine: Path, body: str, message: str) -> None:
    """An agent is told, or the trajectory fails and is sampled again."""
    (mine / "mine.py").write_text(SOURCE.replace('text = f"{query} is on shelf {self.settings.shelf}"', body))
    source = open_sources({"shelf": PluginConfig(name="./mine.py")}, Shelf({}))["shelf"]
    with pytest.raises(SourceError, match=message):
        await source.search("Inari", 3)
    with pytest.raises(SourceError, match=message):
        await source.call("shelf", {"query": "Inari"}, 3)
    with pytest.raises(ToolError, match="takes one argument"):
        await source.call("shelf", {}, 3)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"name": "./mine.py", "settings": {"shlef": "B"}}, r"sources\.s\.settings\.shlef: .*did you mean 'shelf'"),
        ({"name": "./nowhere.py"}, r"sources\.s\.name: there is no file nowhere\.py"),
        ({"nam": "./mine.py"}, r"sources\.s\.nam: unknown key \(did you mean 'name'"),
    ],
)
def test_a_mistake_is_refused_when_the_config_is_read(mine: Path, source: dict[str, object], message: str) -> None:
    data = make_config(mine, []).model_dump(mode="json", exclude_unset=True)
    (mine / "x.yaml").write_text(yaml.safe_dump(data | {"sources": {"s": {"service": "plugin", **source}}}))
    with pytest.raises(UserError, match=message):
        open_config(mine / "x.yaml")
