"""What every room shares: records, configuration, durable files, the run folder, progress and errors."""

import hashlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ratchet.lazy import lazy_attributes

# OpenMP's threads wait by spinning unless told otherwise; on a small machine that does anything else as well, two
# spinning threads starve the ones that work (measured: 7 against 62 GFLOPS with one busy neighbour on two cores). It
# must be set before torch is loaded, so it is set here, where every command begins.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _keep_kernels() -> None:
    """Keep compiled kernels in a folder that is named after all the sources that kernels are made of.

    Numba compiles a kernel anew when its own file changes, but not when a file that it calls into does: after an update
    of the code, stale machine code would read a format that is no longer written.
    """
    digest = hashlib.sha256()
    root = Path(__file__).parent.parent
    for folder in ("retrieval", "index_build", "inference/local"):
        for path in sorted((root / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache = home / "ratchet" / f"numba-{digest.hexdigest()[:16]}"
        cache.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return  # no home to write to: Numba looks for a place itself
    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    if "numba" in sys.modules:  # which has read its environment already
        sys.modules["numba"].config.CACHE_DIR = str(cache)


if "NUMBA_CACHE_DIR" not in os.environ:
    _keep_kernels()

if TYPE_CHECKING:
    from ratchet.config import load_config as load_config
    from report.run_table import read_run as read_run
else:
    __getattr__ = lazy_attributes(__name__, {"load_config": "ratchet.config", "read_run": "report.run_table"})
