"""The commands that the documents show, found in their code blocks, and which of them no test runs, with the reason.

A command is a line of a block marked sh, bash or console, or a line of any other block (indented, or without a
language) that begins with the name of a program below. A backslash at a line's end continues it; ` #`, or three
spaces, begin what is said about it.
"""

import re

PROGRAMS = (
    r"apptainer|apt-get|cd|conda|docker|export|git|ibv_devinfo|ip|make|module|mpiexec|mpirun|pip|python3?|"
    r"rattler-build|rdma|sacct|salloc|sbatch|scancel|scontrol|sinfo|singularity|spack|squeue|srun|sudo|systemctl|tc|"
    r"ulimit|\.ci/run"
)
SHELLS = ("sh", "bash", "console")
VALUE = r"""(?:"[^"]*"|'[^']*'|\$\(.*\)|[^\s"'$])*"""
COMMAND = re.compile(rf"(?:[A-Z_][A-Z0-9_]*={VALUE} +)*(?:{PROGRAMS})(?: .*)?")
SAID = re.compile(r"(?:\s+#\s|\s{3,}\S).*")


def blocks(text):
    """Yield (language, lines) of each code block of a Markdown document; the language of an indented one is None."""
    language, lines = None, []
    inside = False
    for line in [*text.splitlines(), ""]:
        fence = re.fullmatch(r" *```(.*)", line)
        if fence:
            if inside or lines:
                yield language, lines
            inside, language, lines = not inside, None if inside else fence[1].strip(), []
        elif inside:
            lines.append(line)
        elif line.startswith("    "):
            lines.append(line[4:])
        elif lines:
            yield None, lines
            lines = []


def commands(text):
    """The commands of a Markdown document, in order, as a shell takes them."""
    found = []
    for language, lines in blocks(text):
        if language not in (*SHELLS, "", None):
            continue
        for line in re.sub(r"\\\n *", "", "\n".join(lines)).splitlines():
            command = SAID.sub("", line.strip().removeprefix("$ "))
            if command.startswith("#") or not command:
                continue
            if language in SHELLS or COMMAND.fullmatch(command):
                found.append(command)
    return found


HELD = "a test runs it: {}"
GPU = "needs an NVIDIA GPU, or prepares what does; make test-gpu runs the tests"
CLUSTER = "needs a cluster: Slurm, modules, Apptainer, root"
HOSTS = "needs several hosts"
GUEST = "needs root: the kernel's Soft-RoCE in a machine that make test-rdma boots, hosts that are namespaces"
FETCHES = "fetches packages, or builds with what is not installed"
LONG = "takes minutes"
SYNOPSIS = "wants arguments; the lines that give them are run"
MAKE = "make test is what runs this; the other targets set up .venv, or take long"

# (pattern of whole commands, why no test of the documents runs them). A pattern that no document needs is an error.
NOT_RUN = (
    (r"(PYTHON=\S+ )?make .*|\.ci/run", MAKE),
    (r"python -m pytest .*", MAKE),
    (r"python -m hetccl (bench|plan)", SYNOPSIS),
    (r"mpirun --?hosts? .*", HOSTS),
    (r"(sacct|salloc|sbatch|scancel|scontrol|sinfo|squeue|srun|module|apptainer|sudo|systemctl)\b.*", CLUSTER),
    (r"python bench/(gpu|peers/build|peers/compare)\.py.*|.* && python tests/gpu/run\.py", GPU),
    (r"python tests/(softroce/vm|hosts)\.py .*|(tc|ip|rdma) .*", GUEST),
    (r"python tools/amd_files\.py|python tests/emulation/build\.py", HELD.format("tests/emulation/test_emulation.py")),
    (r"pip (install|download|wheel) .*|python3? -m venv .*|git clone .*|rattler-build .*|spack .*", FETCHES),
    (r"python bench/(compare_mpi|kernels|run|report)\.py .*", LONG),
    (r"HETCCL_HOST_CCL=oneccl .*", HELD.format("tests/mpi/test_oneccl.py")),
    (r"HETCCL_CUDA_LIB=.*", HELD.format("tests/gpu/test_device.py")),
    (
        r"mpirun .*python examples/train_lm\.py.*|python examples/train_lm\.py --quick",
        HELD.format("tests/mpi/test_train_lm.py"),
    ),
    (r"mpirun .*python examples/(fft3d|heat2d)\.py.*", HELD.format("tests/mpi/test_examples.py")),
)


def why_not_run(command):
    """The reasons why no test of the documents runs a command: one, or none."""
    return [reason for pattern, reason in NOT_RUN if re.fullmatch(pattern, command)]


def short(command):
    """The command with less work: a benchmark has a few small sizes and iterations. Values that are none stay."""
    if "hetccl bench" not in command:
        return command
    for option, value in (("b", "8"), ("e", "4K"), ("f", "8"), ("n", "2"), ("w", "1")):
        command = re.sub(rf"(?<= -{option} )[0-9]+[KMG]?(?= |$)", value, command)
    # Of an option that is given twice the last one holds.
    return re.sub(r"(?<=hetccl bench )[a-z]+", r"\g<0> -e 4K -f 8 -n 2 -w 1", command)
