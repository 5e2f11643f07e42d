"""The HTTP engines' surroundings."""

from collections.abc import AsyncIterator

import pytest

from tests.helpers.tiny import save_tiny_tokenizer
from tests.helpers.wire_server import Server, World, running


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    with running() as server:
        yield server
        for engine in server.asking:
            await engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def world(server: Server, folder: str) -> World:
    return World(server, folder)


@pytest.fixture
def text_world(server: Server, folder: str) -> World:
    return World(server, folder, engine="chat-api")
