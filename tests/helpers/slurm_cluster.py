"""A real SLURM on loopback for tests: one node, a pretended GPU, a partition that another one preempts.

A job in `gpu` gives way to one in `urgent`: SIGTERM, KillWait seconds, requeued. There is no GraceTime: in SLURM 22.05
it puts that off by 12 s, tells the batch script nothing, and has been seen to end the job as TIMEOUT in its place.

    with SlurmCluster() as cluster:
        job = cluster.submit("--gres=gpu:1", "job.sh", "python", "-m", "ratchet", "sample", ...)
        cluster.wait(job, "COMPLETED")
        print(cluster.log(job))

Each cluster has its own ports, folder and munge, so several run at once. Mark the tests `cluster`.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")
STARTUP = 30.0

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
SlurmctldPort={controller_port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/jobs.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
MpiDefault=none
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=2
MinJobAge=600
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""
NODE = """NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=16 Boards=1 SocketsPerBoard=1 \
CoresPerSocket=16 ThreadsPerCore=1 RealMemory=20000 Gres=gpu:a100:1 State=UNKNOWN"""


class SlurmCluster:
    """Daemons as children of this process, killed with the context. 16 pretended CPUs, so ask for a GPU to collide."""

    def __init__(self, nodes: int = 1) -> None:
        """Several nodes are several slurmd on this machine, each with a name and a port of its own."""
        # Not pytest's folder: munge wants one that others may pass through, and a socket's path is short.
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.logs = self.folder / "logs"
        self.environment = {
            # What a surrounding job of another SLURM set would be taken for this one's.
            **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "SBATCH_OUTPUT": str(self.logs / "%A_%a.out"),
            "SBATCH_OPEN_MODE": "append",
        }
        self._nodes = tuple(f"node{number}" for number in range(nodes))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._stop()

    def _start(self) -> None:
        self.folder.chmod(0o755)
        for name in ("logs", "state", "spool"):
            (self.folder / name).mkdir()
        host = socket.gethostname().split(".")[0]
        controller_port, *ports = _free_ports(1 + len(self._nodes))
        pairs = zip(self._nodes, ports, strict=True)
        nodes = "\n".join(NODE.format(name=name, host=host, port=port) for name, port in pairs)
        conf = CONF.format(host=host, nodes=nodes, folder=self.folder, controller_port=controller_port)
        (self.folder / "slurm.conf").write_text(conf)
        (self.folder / "gres.conf").write_text(
            "".join(f"NodeName={name} Name=gpu Type=a100 File=/dev/null\n" for name in self._nodes)
        )
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{suffix}" for option, suffix in files.items()]
        self._daemon("munged", "--foreground", "--num-threads=2", *options)
        self._until(lambda: (self.folder / "munge.socket").exists(), "munge did not start")
        self.start_controller()
        for name in self._nodes:
            self._daemon("slurmd", "-D", "-N", name, key=name)
        idle = ["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"]
        self._until(lambda: self.run(*idle, check=False).count("idle") == len(self._nodes), "SLURM did not start")

    def _daemon(self, name: str, *arguments: str, key: str = "") -> None:
        """Start a daemon; `key` is its name in `_daemons` where there are several."""
        with (self.folder / f"{key or name}.out").open("ab") as out:
            self._daemons[key or name] = subprocess.Popen(
                [shutil.which(name) or name, *arguments], env=self.environment, stdout=out, stderr=out
            )

    def _until(self, is_done: object, message: str) -> None:
        deadline = time.monotonic() + STARTUP
        assert callable(is_done)
        while not is_done():
            if time.monotonic() > deadline:
                logs = "\n".join(f"{p}:\n{p.read_text()[-2000:]}" for p in sorted(self.folder.glob("*.out")))
                raise AssertionError(f"{message}\n{logs}")
            time.sleep(0.2)

    def start_controller(self) -> None:
        """Also after kill_controller: it finds the jobs again."""
        self._daemon("slurmctld", "-D")
        self._until(lambda: "UP" in self.run("scontrol", "ping", check=False), "the controller did not start")

    def kill_controller(self, job: int) -> None:
        """SIGKILL, after it has written this job down: it saves its state some seconds late, and would forget it."""
        state, asked = self.folder / "state" / "job_state", time.time()
        self.run("scontrol", "update", f"JobId={job}", "Comment=to be saved")
        self._until(lambda: state.exists() and state.stat().st_mtime > asked, "the controller does not save its state")
        daemon = self._daemons.pop("slurmctld")
        daemon.kill()
        daemon.wait()

    def _stop(self) -> None:
        if self._nodes[0] in self._daemons and "slurmctld" in self._daemons:
            self.run("scancel", "--quiet", "--user=root", check=False)
            deadline = time.monotonic() + STARTUP
            while self.run("squeue", "-h", check=False).strip() and time.monotonic() < deadline:
                time.sleep(0.1)
        for name in (*self._nodes, "slurmctld", "munged"):
            if daemon := self._daemons.pop(name, None):
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, check: bool = True, env: dict[str, str] | None = None) -> str:
        """stdout of one of SLURM's commands, or of a script that calls them, from the project's root."""
        done = subprocess.run(
            command,
            env={**self.environment, **(env or {})},
            cwd=Path(__file__).parents[2],
            text=True,
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0 or not check, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *arguments: str, env: dict[str, str] | None = None) -> int:
        """sbatch with these arguments; the job's number."""
        return int(self.run("sbatch", "--parsable", *arguments, env=env).split(";")[0])

    def tasks(self, job: int) -> list[dict[str, str]]:
        """What SLURM says of a job; of an array, one for each task that has a record of its own."""
        lines = self.run("scontrol", "show", "job", "--oneliner", str(job), check=False).splitlines()
        return [dict(pair.split("=", 1) for pair in line.split() if "=" in pair) for line in lines if "JobId=" in line]

    def wait(self, job: int, *states: str, deadline: float = 180.0) -> list[dict[str, str]]:
        """Wait until every task of the job is in one of these states (default: any end); fails with its log."""
        wanted = states or ENDED
        until = time.monotonic() + deadline
        while True:
            tasks = self.tasks(job)
            if tasks and all(task["JobState"] in wanted for task in tasks):
                return tasks
            facts = ("JobState", "ExitCode", "Restarts", "Reason")
            now = ", ".join(" ".join(task.get(fact, "") for fact in facts) for task in tasks) or "unknown"
            is_over = tasks and all(task["JobState"] in ENDED for task in tasks)
            if is_over or time.monotonic() > until:
                raise AssertionError(f"job {job} is {now}, not {' or '.join(wanted)}\n{self.log(job)}")
            time.sleep(1)  # each look is a process of SLURM's own

    def start_soon(self, job: int) -> None:
        """A requeued job waits two minutes for its turn: this one 3 s, once it is back in the queue.

        The node refuses a job that starts in the second of its requeue: "Job credential revoked".
        """
        self.wait(job, "PENDING", "RUNNING", "COMPLETED")
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds", check=False)

    def log(self, job: int) -> str:
        """What the job and its tasks have printed."""
        return "".join(path.read_text() for path in sorted(self.logs.glob(f"{job}_*.out")))


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()
