"""Put this folder on PYTHONPATH, and the project's commands run in processes that have the heavy libraries loaded.

Importing torch, transformers, PEFT and TRL takes five to eight seconds of a core, and a test of self-training starts a
dozen commands. server.py beside this file imports them and the project's modules once, and forks a process for each
command from there. The command runs from its first line to its last with its own arguments, folder, variables and
standard files, and finds most of its modules imported. The process that was started waits, passes signals on, and ends
as the command ends. When it is killed, the command is killed as well, with the rest of its process group.

Each of the Python processes that a command starts has one that stands for it as well. Not for tests that measure
memory: those start Python as it is.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

ADDRESS = "RATCHET_PRELOADED"
"""The environment variable with the server's socket; without it, Python starts as it does everywhere."""
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = (ROOT, ROOT / "benchmarks", ROOT / "tests" / "helpers")


def is_command(words: list[str]) -> bool:
    """Whether Python runs a module of the project or of accelerate, or a script of its root, benchmarks or tests."""
    if words[0] == "-m":
        return words[1].partition(".")[0] in ("accelerate", "ratchet")
    return words[0].endswith(".py") and Path(words[0]).resolve().parent in SCRIPTS


def hand_over(words: list[str], address: str) -> None:
    """Let the server run the command, and end as it ends; return where the server declines."""
    request = {"words": words, "folder": str(Path.cwd()), "path": sys.path, "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"\n"], [0, 1, 2])
        server.sendall(json.dumps(request).encode() + b"\n")
        answers = server.makefile()
        process = int(answers.readline())
        if not process:
            return
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda received, _: os.kill(process, received))
        line = answers.readline() or f"{signal.SIGKILL}"  # the server has ended
        status = os.waitstatus_to_exitcode(int(line))
    if status < 0:
        if status != -signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def fork_engines() -> None:
    """vLLM's server for CPUs spawns the process of its engine, which takes as long to import all modules as the server
    took: let it fork, as the server for GPUs does."""
    import multiprocessing  # late: no other command needs it

    context = multiprocessing.get_context
    multiprocessing.get_context = lambda method=None: context(  # type: ignore[assignment]
        "fork" if method == "spawn" else method
    )


command = [word for word in sys.orig_argv[1:] if word not in ("-u", "-P")]
if ADDRESS in os.environ and command and is_command(command):
    hand_over(command, os.environ[ADDRESS])
if command[1:2] == ["vllm.entrypoints.openai.api_server"]:
    fork_engines()
