"""The wheel of this checkout, installed into an environment of its own."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

from tests.helpers.pages import ROOT

SECONDS = 1_600_000_000
"""When every file of the wheel was written: Numba keeps a kernel with the time of its source."""


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and an empty folder to work in."""

    environment: Path
    folder: Path

    def run(self, *words: str, status: int = 0, is_preloaded: bool = True) -> str:
        """Run a program of the environment, without the checkout, and return what it printed; it must end with this
        status. Preloaded, modules that it or the test starts by `python -m` find torch loaded (tests/preloaded)."""
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        preloaded = {"PYTHONPATH": str(ROOT / "tests" / "preloaded")} if is_preloaded else {}
        done = subprocess.run(
            [str(self.environment / "bin" / words[0]), *words[1:]],
            cwd=self.folder,
            env={**kept, "HF_HUB_OFFLINE": "1", **preloaded},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == status, f"{' '.join(words)}\n{done.stdout}"
        return done.stdout


PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, built in `folder`."""
    source = folder / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\0")
    for name in tracked:
        is_there = (ROOT / name).is_file() or (ROOT / name).is_symlink()  # src/ratchet has links to the folders
        if is_there and not name.startswith(("tests/", "benchmarks/", "docs/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name, follow_symlinks=False)
    wheels = folder / "wheels"
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run(build, check=True)
    [wheel] = wheels.glob("*.whl")
    return wheel


def new_environment(folder: Path) -> Path:
    """An environment whose packages are the tests' own; returns the folder of its packages."""
    venv.create(folder, clear=True, with_pip=False)
    [packages] = folder.glob("lib/python*/site-packages")
    # .pth files in the tests' packages, as that of an editable install, are not read.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return packages


def pip_install(environment: Path) -> list[str]:
    """The command that installs a wheel into an environment, without the wheel's name."""
    python = str(environment / "bin" / "python")
    return [*PIP, "--python", python, "install", "--no-deps", "--no-index", "--no-compile"]


def install_wheel(folder: Path, environment: Path) -> None:
    """Build the wheel in `folder` and install it beside another project's `agents`; its dependencies are the tests' own
    packages."""
    wheel, packages = build_wheel(folder), new_environment(environment)
    before = set(packages.iterdir())
    subprocess.run([*pip_install(environment), str(wheel)], check=True)
    for module in (packages / "ratchet").rglob("*.py"):
        os.utime(module, (SECONDS, SECONDS))
    added = set(packages.iterdir()) - before
    assert {path.name for path in added if not path.name.endswith(".dist-info")} <= {"ratchet"}
    (packages / "agents").mkdir()
    (packages / "agents" / "__init__.py").write_text("raise ImportError('this is another project')\n")
