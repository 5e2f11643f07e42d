#!/usr/bin/env bash
# Run one command as a SLURM job that survives preemption and its time limit:
#
#     sbatch --signal=B:USR1@300 --requeue --open-mode=append [OPTIONS] slurm/job.sh ratchet sample --config X
#
# `ratchet slurm` submits this with options made from a site file; it works as well by hand. The command must be one
# that resumes when it is run again, as all of Ratchet's are. What happens to it:
#
#   time limit near (USR1)    it is stopped in order (TERM), and the job requeues itself
#   preempted, cancelled      it is stopped in order; SLURM requeues or not
#   it fails by itself        the job fails with its status, and is not requeued
#   started twice             the duplicate start waits for the first one's lock, then finds its work done
#
# Environment, all optional:
#   RATCHET_MODULES           modules to load, separated by blanks
#   RATCHET_SETUP             lines of shell to run before, such as: source .venv/bin/activate
#   RATCHET_STOP_SECONDS      how long the command may take to stop before it is killed (240): training saves a checkpoint
#                             after the step that it is in. With another --signal, a minute less than that
#   RATCHET_MAX_REQUEUES      the limit of restarts after which a job does not requeue itself (50)
set -euo pipefail

say() { printf 'job.sh: %s\n' "$*" >&2; }

if [ $# -eq 0 ]; then
    say "which command? sbatch [OPTIONS] slurm/job.sh COMMAND [ARGUMENTS]"
    exit 2
fi
stop_seconds=${RATCHET_STOP_SECONDS:-240}
max_requeues=${RATCHET_MAX_REQUEUES:-50}
restarts=${SLURM_RESTART_COUNT:-0}
job=${SLURM_JOB_ID:-}
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    job=${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}
fi

# From here on a signal is remembered and, once the command runs, passed on to it. The first says why; SLURM sends some
# more than once, or to every process of the job, and a command that is stopping is not to be disturbed.
child=
stopping=
stop() {
    [ -z "$stopping" ] || return 0
    stopping=$1
    [ -z "$child" ] || kill "-$stop_signal" "$child" 2> /dev/null || true
}
# srun kills its step at a TERM and passes a USR1 on to it, which ratchet.training.launch takes as a TERM.
stop_signal=TERM
if [ "$1" = srun ]; then stop_signal=USR1; fi
trap 'stop time' USR1
trap 'stop told' TERM INT

# Modules and environments are other people's scripts: they may read unset variables and ignore failures inside.
set +eu
if [ -n "${RATCHET_MODULES:-}" ]; then
    # A batch shell is no login shell: where the function was not handed down, its definition is read.
    if ! type module > /dev/null 2>&1; then
        for init in "${MODULESHOME:-}/init/bash" /etc/profile; do
            if [ -r "$init" ]; then . "$init"; fi
            if type module > /dev/null 2>&1; then break; fi
        done
    fi
    for name in $RATCHET_MODULES; do
        if ! module load "$name"; then
            say "module load $name failed; see modules in the site file"
            exit 2
        fi
    done
fi
if [ -n "${RATCHET_SETUP:-}" ] && ! eval "$RATCHET_SETUP"; then
    say "the set-up failed; see setup in the site file: $RATCHET_SETUP"
    exit 2
fi
set -euo pipefail

if [ -n "${SLURM_CPUS_PER_TASK:-}" ]; then
    # Not all CPUs of a shared node; each GPU has a process of its own, in training as in serving.
    gpus=${SLURM_GPUS_ON_NODE:-0}
    [[ $gpus =~ ^[1-9][0-9]*$ ]] || gpus=1
    threads=$((SLURM_CPUS_PER_TASK / gpus))
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}
fi

# Of an array's task: the argument @TASK@/8 is 3/8 in task 3.
command=()
for argument in "$@"; do
    case $argument in
        @TASK@/*) command+=("${SLURM_ARRAY_TASK_ID:-0}/${argument#@TASK@/}") ;;
        *) command+=("$argument") ;;
    esac
done

child_gone() { ! kill -0 "$child" 2> /dev/null; }
group_gone() { ! kill -0 -- "-$child" 2> /dev/null; }
within() { # within SECONDS CHECK: whether it comes true in this time
    local tick
    for ((tick = 0; tick < $1 * 10; tick++)); do
        if "$2"; then return 0; fi
        sleep 0.1
    done
    "$2"
}

status=143 # where a signal came before the command was started
if [ -z "$stopping" ]; then
    say "job ${job:-(outside of SLURM)} on ${HOSTNAME:-?}, start $((restarts + 1)): ${command[*]}"
    set -m # the command gets a process group of its own, so that all of its processes can be ended
    "${command[@]}" &
    child=$!
    set +m
    if [ -n "$stopping" ]; then kill "-$stop_signal" "$child" 2> /dev/null || true; fi # it came before that
    status=0
    [ -n "$stopping" ] || wait "$child" || status=$? # until the command ends or a signal comes
    if [ -n "$stopping" ]; then
        say "told to stop (${stopping/time/time limit}): the command has $stop_seconds s"
        if ! within "$stop_seconds" child_gone; then
            say "it does not stop: killed"
            kill -KILL -- "-$child" 2> /dev/null || true
        fi
        status=0
        wait "$child" || status=$? # its own status, not that of the wait that was interrupted
    fi
    if ! group_gone; then # a launcher may end before what it launched
        kill -TERM -- "-$child" 2> /dev/null || true
        within "$stop_seconds" group_gone || kill -KILL -- "-$child" 2> /dev/null || true
    fi
fi

if [ "$stopping" = time ] && [ "$status" -ne 0 ]; then
    if ((restarts >= max_requeues)); then
        say "out of time, and started $((restarts + 1)) times already: not requeued (RATCHET_MAX_REQUEUES=$max_requeues)." \
            "If the work goes forward, submit the same again; else see above what stops it."
    else
        say "out of time before the work was done: requeued, to resume from here"
        scontrol requeue "$job" || say "it cannot be requeued; submit the same again to resume"
    fi
elif [ "$status" -ne 0 ]; then
    say "the command ended with status $status"
fi
exit "$status"
