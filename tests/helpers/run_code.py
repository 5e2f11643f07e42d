"""Code in a process of its own: `python tests/helpers/run_code.py CODE ARGUMENTS...` does what `python -c` does.

A file, unlike -c, may run in a process that has the heavy libraries loaded (see tests/preloaded).
"""

import subprocess
import sys
from pathlib import Path


def run_code(
    code: str, *arguments: object, typed: str | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run code from the project's root; `typed`: what stands on its standard input; `variables`: its environment's."""
    from tests.helpers.experiment import ROOT, preloaded  # late: the code's process does not need it

    return subprocess.run(
        code_command(code, *arguments),
        input=typed,
        cwd=ROOT,
        env=preloaded(**variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


def code_command(code: str, *arguments: object) -> list[str]:
    """The command, which wants the environment of `preloaded` (tests/helpers/experiment.py)."""
    return [sys.executable, __file__, code, *map(str, arguments)]


if __name__ == "__main__":
    program = sys.argv.pop(1)
    sys.path[0] = str(Path.cwd())
    exec(compile(program, "<argument>", "exec"), {"__name__": "__main__"})
