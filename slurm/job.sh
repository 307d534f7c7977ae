# Sourced by the batch scripts, in the folder from which they were submitted.

# Since Slurm 22.05 srun takes --cpus-per-task from this variable alone.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
# Threads of NumPy's and PyTorch's libraries: the cores of a rank, not those of its node.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}

# program [PROGRAM ARGUMENTS...]: what python runs, as the array of the same name; by default an example.
program() {
    program=("${@:-examples/power_iteration.py}")
    [ -f "${program[0]}" ] && return
    echo "no ${program[0]} in $PWD: name the program as seen from there" >&2
    exit 2
}

# What a script for two components needs of its job.
two_components() {
    if [ "${SLURM_HET_SIZE:-1}" != 2 ]; then
        echo "this job has ${SLURM_HET_SIZE:-1} component, not 2: was the line '#SBATCH hetjob' changed?" >&2
        return 2
    fi
    local first second
    first=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_0" | sort | tail -n 1)
    second=$(scontrol show hostnames "$SLURM_JOB_NODELIST_HET_GROUP_1" | sort | head -n 1)
    if [[ $SLURM_MPI_TYPE == pmix* && $first > $second ]]; then
        echo "warning: with --mpi=pmix some versions of Slurm cannot join a first component on $first and a second" \
            "one on $second; should srun fail to connect them, exchange the components of this script" >&2
    fi
}
