"""The HTTP engines' surroundings."""

import threading
from collections.abc import Iterator

import pytest
from tiny import save_tiny_tokenizer
from wire_server import Server, World


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_tiny_tokenizer(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def world(server: Server, folder: str) -> World:
    return World(server, folder)


@pytest.fixture
def text_world(server: Server, folder: str) -> World:
    return World(server, folder, engine="openai")
