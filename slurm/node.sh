#!/usr/bin/env bash
# Run one command on each node of a job; srun starts this on all of them (slurm/submit.py). In its arguments
#
#   @NODE@          is the number of the node, from 0
#   @FIRST_NODE@    is the address of the node with number 0, from which srun was called
#   @PORT@          is a port that is the same on all nodes and, on one node, differs between jobs
#
# A command that ends with an error ends the others (srun --kill-on-bad-exit=1), which would wait for it.
set -euo pipefail

command=()
for argument in "$@"; do
    argument=${argument//@NODE@/$SLURM_NODEID}
    argument=${argument//@FIRST_NODE@/$SLURM_LAUNCH_NODE_IPADDR}
    command+=("${argument//@PORT@/$((20000 + SLURM_JOB_ID % 10000))}")
done
printf 'node.sh: node %s, %s: %s\n' "$SLURM_NODEID" "${SLURMD_NODENAME:-?}" "${command[*]}" >&2
exec "${command[@]}"
