"""SIGKILLs while pip installs the wheel: the same command again leaves what an uninterrupted one does."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.campaign.export_kills import files
from tests.campaign.trial import Attack, Trial
from tests.helpers.wheel import Installed, build_wheel, new_environment, pip_install


@contextmanager
def installing(folder: Path) -> Iterator[Trial]:
    """pip is killed at a random moment while it installs the wheel into a new environment."""
    wheel, environment = build_wheel(folder), folder / "environment"

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([*pip_install(environment), "--force-reinstall", str(wheel)])

    new_environment(environment)
    began = time.monotonic()
    assert start().wait() == 0
    seconds, wanted = time.monotonic() - began, files(environment)

    def trial(dice: random.Random) -> None:
        shutil.rmtree(environment)
        new_environment(environment)
        process = start()
        time.sleep(dice.uniform(0, seconds))
        process.kill()
        process.wait()
        assert start().wait() == 0
        assert files(environment) == wanted, "what is installed is not what an uninterrupted installation leaves"
        assert "selftrain" in Installed(environment, folder).run("ratchet", "--help", is_preloaded=False)

    yield trial


ATTACKS = (Attack("kills while the wheel is installed", installing, 0, 50, 60.0, mark="slow"),)
