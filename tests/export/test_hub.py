"""Uploads through huggingface_hub itself, to a local server that speaks the part of the hub's API which it uses."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from export.hub import upload_plan
from tests.helpers.pages import ROOT

WEIGHTS = os.urandom(2_000_000)


class Hub(ThreadingHTTPServer):
    """A hub with one valid token. Large files (LFS) come first, and a commit names them by their sha256."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: dict[str, bool] = {}
        self.objects: dict[str, bytes] = {}
        self.uploads = 0


class Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_PUT(self) -> None:
        data = self.body()
        assert hashlib.sha256(data).hexdigest() == self.path.rpartition("/")[2]
        self.server.objects[hashlib.sha256(data).hexdigest()] = data
        self.server.uploads += 1
        self.answer({})

    def do_GET(self) -> None:
        self.answer({"error": f"no such page: {self.path}"}, 404)

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.body()
        if self.headers.get("Authorization") != "Bearer hf_right":
            return self.answer({"error": "Invalid username or password."}, 401)
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            given = json.loads(body)
            name = f"{given.get('type') or 'model'}s/{given['organization']}/{given['name']}"
            status = 409 if name in self.server.repositories else 200
            self.server.private.setdefault(name, given.get("private") or given.get("visibility") == "private")
            self.server.repositories.setdefault(name, {})
            return self.answer({"url": f"{self.server.url}/{name}"}, status)
        if path.endswith("/info/lfs/objects/batch"):
            found = []
            for one in json.loads(body)["objects"]:
                href = {"href": f"{self.server.url}/objects/{one['oid']}"}
                found.append(one if one["oid"] in self.server.objects else {**one, "actions": {"upload": href}})
            return self.answer({"transfer": "basic", "objects": found})
        name, _, action = path.removeprefix("/api/").removesuffix("/main").rpartition("/")
        if action == "preupload":
            files = [
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if one["size"] > 1_000_000 else "regular",
                    "shouldIgnore": False,
                }
                for one in json.loads(body)["files"]
            ]
            return self.answer({"files": files})
        assert action == "commit", path
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                self.server.repositories[name][value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                self.server.repositories[name][value["path"]] = self.server.objects[value["oid"]]
        self.answer({"commitUrl": f"{self.server.url}/{name}/commit/1", "commitOid": "1", "pullRequestUrl": None})


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "merged"
    (made / "prompts").mkdir(parents=True)
    (made / "README.md").write_text("---\nlicense: unknown\n---\n# A model\n")
    (made / "model.safetensors").write_bytes(WEIGHTS)
    (made / "prompts" / "answerer.txt").write_text("Answer.")
    (made / "export.json").write_text("{}")
    return made


def push(hub: Hub, folder: Path, kind: str, token: str = "hf_right") -> subprocess.CompletedProcess[str]:
    """In a process of its own, since huggingface_hub reads its settings when it is imported."""
    script = (
        "import sys; from pathlib import Path; from export.hub import push\n"
        "from commands.arguments import run_command\n"
        "run_command(lambda: print(push(Path(sys.argv[1]), 'me/demo', sys.argv[2], public=False)))"
    )
    settings = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    words = [sys.executable, "-c", script, str(folder), kind]
    environment = {**os.environ, **settings, "HF_HOME": str(folder.parent / "home")}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.parametrize("kind", ["model", "dataset"])
def test_a_folder_becomes_one_commit_of_a_private_repository(hub: Hub, folder: Path, kind: str) -> None:
    done = push(hub, folder, kind)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"{hub.url}/{kind}s/me/demo/commit/1"
    found = hub.repositories[f"{kind}s/me/demo"]
    assert found == {
        "README.md": (folder / "README.md").read_bytes(),
        "model.safetensors": WEIGHTS,
        "prompts/answerer.txt": b"Answer.",
    }
    assert hub.private[f"{kind}s/me/demo"] is True
    assert push(hub, folder, kind).returncode == 0 and hub.uploads == 1, "the weights are there already"


@pytest.mark.slow
@pytest.mark.server
def test_a_refused_upload_is_one_line_that_says_how_to_log_in(hub: Hub, folder: Path) -> None:
    done = push(hub, folder, "model", token="hf_wrong")
    assert done.returncode == 2 and hub.repositories == {}
    assert done.stderr.startswith("error: --hub me/demo: ") and "hf auth login" in done.stderr
    assert "hf_wrong" not in done.stderr


def test_the_plan_lists_what_would_be_uploaded(folder: Path) -> None:
    shown = upload_plan(folder, "me/demo", "model", public=False)
    assert shown.startswith("3 files of 2.0 MB for the private model me/demo at https://huggingface.co:\n")
    assert "    2.0 MB  model.safetensors\n" in shown and "export.json" not in shown
    assert "names no licence (unknown)" in shown
