"""Exported folders as repositories of the Hugging Face hub. Nothing leaves the machine without --push."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from export.folders import CARD, RECORD
from ratchet.errors import UserError, first_line

RepoType = Literal["model", "dataset"]
OURS = (RECORD, ".*")
"""Files that are not uploaded."""


def upload_plan(folder: Path, repo: str, kind: RepoType, public: bool) -> str:
    """What `push` would upload, for people."""
    from huggingface_hub import constants

    files = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in _files(folder)]
    total = sum(size for _, size in files)
    seen = "public" if public else "private"
    lines = [f"{len(files)} files of {_size(total)} for the {seen} {kind} {repo} at {constants.ENDPOINT}:"]
    lines += [f"  {_size(size):>10}  {name}" for name, size in files]
    card = folder / CARD
    if card.exists() and "\nlicense: unknown\n" in card.read_text(encoding="utf-8"):
        lines.append("Its card names no licence (unknown): look it up before others can see the repository.")
    return "\n".join(lines)


def push(folder: Path, repo: str, kind: RepoType, public: bool) -> str:
    """Create the repository where there is none, upload the folder as one commit, and return its address.

    A repository that exists stays public or private as it is. Files of it that the folder has not are left alone.
    """
    import httpx
    from huggingface_hub import HfApi

    api = HfApi()
    message = f"Upload {folder.name} with Ratchet"
    try:
        api.create_repo(repo, repo_type=kind, private=not public, exist_ok=True)
        done = api.upload_folder(
            repo_id=repo, repo_type=kind, folder_path=folder, commit_message=message, ignore_patterns=list(OURS)
        )
    except (httpx.HTTPError, OSError, RuntimeError, ValueError) as error:  # all that huggingface_hub raises of its own
        raise UserError(
            f"--hub {repo}: the hub refused, or was not reached: {first_line(error)}. Log in with `hf auth login` or "
            "HF_TOKEN; the same command again uploads only what is missing"
        ) from error
    return str(done.commit_url)


def _files(folder: Path) -> list[Path]:
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.name != RECORD and not path.name.startswith(".")]


def _size(count: int) -> str:
    number, unit = float(count), "B"
    for larger in ("kB", "MB", "GB"):
        if number < 1000:
            break
        number, unit = number / 1000, larger
    return f"{number:.0f} B" if unit == "B" else f"{number:.1f} {unit}"
