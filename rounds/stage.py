"""One step of a run as data, and the run that it belongs to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ratchet.core.config import Config
from ratchet.core.runfolder import RunFolder
from ratchet.inference.engines import needs_server
from ratchet.rounds.artefacts import Artefact
from ratchet.rounds.records import StageId, StageKey

RATCHET = (sys.executable, "-P", "-m", "ratchet")
"""What starts a command. -P: a folder `agents` in the working directory hides no package that a plug-in imports."""
Command = tuple[str, ...]


@dataclass(frozen=True)
class Stage:
    """One step of a run: its command, and what the command reads and writes."""

    round: int
    id: StageId
    command: Command
    reads: Mapping[str, Artefact]
    writes: Mapping[str, Artefact]
    asks: tuple[str, ...] = ()
    """Names of the models that it asks."""
    models: tuple[str, ...] = ()
    """Those of them that are served while it runs."""
    member: str = ""
    """The member whose stage it is; empty where it is the run's own."""

    @property
    def key(self) -> StageKey:
        return StageKey(self.round, self.id, self.member)

    @property
    def title(self) -> str:
        return self.key.title


@dataclass(frozen=True)
class ExperimentRun:
    """A config as its user gave it, and where it is run."""

    config: Config
    arguments: tuple[str, ...]
    """--config and --set, for every command."""
    accelerate: str | None = None
    """A config file of `accelerate launch`."""
    processes: int | None = None
    """Of the training, each on a GPU of this machine. None: one without a launcher, or as the file says."""
    member: str = ""
    """Its name, where it is a member of another config."""

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.config.folder)

    def command(self, *words: str, number: int | None = None) -> Command:
        """`ratchet WORDS` with this config; `number`: its round."""
        at = () if number is None else ("--round", str(number))
        return (*RATCHET, *words, *self.arguments, *at)

    def stage(
        self,
        number: int,
        id: StageId,
        command: Command,
        reads: Mapping[str, Artefact],
        writes: Mapping[str, Artefact],
        models: Iterable[str] = (),
    ) -> Stage:
        """`models`: all that the command asks; a server is put around it for those that need one."""
        asks = tuple(sorted(models))
        served, command = self.beside_servers(asks, command)
        return Stage(number, id, command, reads, writes, asks, served, self.member)

    def beside_servers(self, models: Iterable[str], command: Command) -> tuple[tuple[str, ...], Command]:
        """(those of the models that need a server, the command with their servers around it)."""
        served = tuple(sorted(name for name in models if needs_server(name, self.config.models[name])))
        serve = (*RATCHET, "models", "serve", *self.arguments, "--models", ",".join(served), "--")
        return served, (*serve, *command) if served else command
