"""Weights & Biases (`training.wandb`): what it needs, and how transformers is told of it."""

from __future__ import annotations

import netrc
import os
from pathlib import Path
from urllib.parse import urlsplit

from ratchet.core.errors import UserError
from ratchet.core.http.environment import is_address
from ratchet.core.installed import need_extra

SERVER = "https://api.wandb.ai"
SHORTEST_KEY = 40
"""Characters of a key: its client refuses a shorter one."""
INSTEAD = "set training.wandb=offline, and upload the run later with `wandb sync`"


def check_wandb(mode: str) -> None:
    """Raises UserError where the package, or with `online` the account's key, is not there. wandb itself would ask for
    the key, or fail, once the model is loaded. Nothing is sent."""
    if mode == "off":
        return
    asked = f"training.wandb={mode}"
    need_extra("wandb", asked)
    if os.environ.get("WANDB_DISABLED", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise UserError(f"{asked}, but WANDB_DISABLED is set, which switches it off: unset one of them")
    if mode != "online":
        return
    server = os.environ.get("WANDB_BASE_URL", SERVER)
    if not is_address(server, ("http", "https")):
        raise UserError(f"WANDB_BASE_URL: {server!r} is not an address such as {SERVER}: correct it, or unset it")
    key = os.environ.get("WANDB_API_KEY")
    if key and len(key) < SHORTEST_KEY:
        raise UserError(f"WANDB_API_KEY: a key has {SHORTEST_KEY} characters or more, and this one has {len(key)}")
    if not key and not os.environ.get("WANDB_IDENTITY_TOKEN_FILE") and not _is_logged_in(server):
        raise UserError(
            f"{asked} needs the key of an account on {server}: run `wandb login`, set WANDB_API_KEY, or {INSTEAD}"
        )


def _is_logged_in(server: str) -> bool:
    """Whether the file that `wandb login` writes has a key for the server."""
    named = os.environ.get("NETRC")
    for path in [Path(named).expanduser()] if named else [Path.home() / ".netrc", Path.home() / "_netrc"]:
        try:
            return bool(netrc.netrc(path).authenticators(urlsplit(server).netloc))
        except FileNotFoundError:
            continue
        except (netrc.NetrcParseError, OSError, UnicodeDecodeError):
            return False  # as wandb takes it
    return False


def logging_integrations(mode: str, folder: Path) -> list[str]:
    """transformers' own wandb callback, or nothing at all."""
    check_wandb(mode)
    if mode == "off":
        return []
    os.environ["WANDB_MODE"] = mode
    os.environ.setdefault("WANDB_DIR", str(folder))
    return ["wandb"]
