"""The settings of the system `external`."""

from __future__ import annotations

from pydantic import Field, model_validator

from ratchet.core.config import Section


class Settings(Section):
    """The program, and what it may use. Without `command` and `url`, programs come to the gateway by themselves."""

    command: tuple[str, ...] = ()
    """Program and arguments that are started for every trajectory, without a shell. Relative to the working
    directory."""
    url: str | None = None
    """Address of a running program that answers a POST for every trajectory."""
    timeout: float = Field(600.0, gt=0)
    """Seconds that a trajectory may take; without `command` and `url`, seconds without a request once it has begun."""
    env: dict[str, str] = Field(default={})
    """Environment variables of the program, besides those of the command that runs it."""
    files: tuple[str, ...] = ()
    """Files that the program consists of besides those of `command`. A change of any of them samples again."""
    roles: tuple[str, ...] = Field(("agent",), min_length=1)
    """Roles that the program's model calls may play: a request plays the one that it names as its `model`, or else the
    first."""
    source: str = "index"
    """Where the program's searches go: the index, or a name under `sources`."""
    documents: int = Field(3, gt=0)
    """Number of passages of a search that names none."""
    port: int = Field(8400, ge=0, le=65535)
    """Port of the gateway where programs come by themselves; else it takes a free one."""

    @model_validator(mode="after")
    def _check_program(self) -> Settings:
        if self.command and self.url:
            raise ValueError("name a command or a url, not both")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url: {self.url!r} is not an address such as http://127.0.0.1:9000/answer")
        return self
