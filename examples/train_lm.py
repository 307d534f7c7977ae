"""Data-parallel training of a small character language model, with hetccl.Comm in place of the MPI communicator.

    mpirun -n 4 python examples/train_lm.py          (or `make demo`; also runs alone, without mpirun)

Every rank holds the whole model and computes the gradient of its share of each batch; one all-reduce adds the shares
up. The text is the source of Python's own standard library. At the end the job checks itself: all ranks hold the same
parameters bit by bit, and the losses are those of a one-process run on the same batches.
"""

import argparse
import hashlib
import os
import statistics
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from itertools import islice
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one thread per rank, set before NumPy loads its BLAS

import charlm
import numpy as np
from mpi4py import MPI

import hetccl
from hetccl.plan import build, render, select

# A few seconds, for tests. Steps so short say nothing about the share of communication: any is accepted.
QUICK = {"steps": 40, "batch": 250, "hidden": 64, "report_every": 10, "max_share": 1.0}
HELD_OUT_CHARACTERS = 4096
CHECKED_STEPS = 20
# Relative. Float32 sums in another order move a loss by 1e-7; Adam, which divides small gradients by small numbers,
# makes up to 3.4e-6 of it in 20 steps (measured: 19 seeds, 2 to 7 ranks). Faults move it by more: 4.5e-5 when three
# ranks that share 1,024 characters unevenly are weighed equally, 1.4e-3 when one of the characters is lost.
LOSS_TOLERANCE = 2e-5
TABLE_SECONDS_PER_SIZE = 0.5
COLUMNS = 80
BAR_WIDTH = 26
INTERRUPTED = 130  # the exit status that a shell gives a program ended by Ctrl-C


class Step(NamedTuple):
    """One step of training: `loss` in nats per character, the step's `seconds`, and those of them in the all-reduce."""

    number: int
    loss: float
    seconds: float
    in_allreduce: float


def share(items, rank, size):
    """The part of a batch that falls to a rank; parts differ by one item when the batch does not divide evenly."""
    return np.array_split(items, size)[rank]


def learning_rate(step, options):
    """Warm up, then fall along half a cosine; `step` counts from 1."""
    warm = min(1.0, step / 20)
    return options.rate * warm * (0.5 + 0.5 * np.cos(np.pi * step / (options.steps + 1)))


def train(comm, model, text, options):
    """Train on all ranks of comm; yields each Step. The parameters stay equal on all ranks, to the last bit."""
    for number in range(1, options.steps + 1):
        started = time.perf_counter()
        # Every rank draws the same batch, of which it takes its share: no rank has to send examples to another.
        batch = np.random.default_rng((options.seed, number)).integers(model.context, len(text), options.batch)
        mine = share(batch, comm.rank, comm.size)
        # Each rank divides by the size of the whole batch, so the sum over ranks is the mean over all its characters,
        # whoever had how many. The loss is the last element of the same array.
        model.backward(*charlm.examples(text, mine, model.context), total=options.batch)
        in_allreduce = allreduce_gradient(comm, model)
        model.adam_step(number, learning_rate(number, options))
        yield Step(number, float(model.grad[-1]), time.perf_counter() - started, in_allreduce)


def allreduce_gradient(comm, model):
    """Sum the gradient (and the loss) over all ranks, in place; returns the seconds spent in the call."""
    # The collectives of this version work on host memory, so a gradient on the GPU goes through the host.
    on_host = charlm.to_host(model.grad)
    started = time.perf_counter()
    comm.Allreduce(hetccl.IN_PLACE, on_host, op=hetccl.SUM)
    seconds = time.perf_counter() - started
    if on_host is not model.grad:
        model.grad[:] = model.xp.asarray(on_host)
    return seconds


def held_out_loss(comm, model, text):
    """Nats per character on text that is never trained on; every rank computes its share."""
    positions = np.linspace(model.context, len(text) - 1, HELD_OUT_CHARACTERS).astype(np.int64)
    mine = share(positions, comm.rank, comm.size)
    loss = np.array([model.loss(*charlm.examples(text, mine, model.context), total=HELD_OUT_CHARACTERS)])
    comm.Allreduce(hetccl.IN_PLACE, loss, op=hetccl.SUM)
    return loss[0]


def new_model(options, xp):
    return charlm.Model(options.context, options.embed, options.hidden, options.seed, xp=xp)


def load_text(comm):
    """Rank 0 reads the files and the others receive them: another host may have another version of Python."""
    parts = charlm.read_text() if comm.rank == 0 else (None, None)
    lengths = np.array([0 if part is None else len(part) for part in parts])
    comm.Bcast(lengths)
    parts = [np.empty(length, np.uint8) if part is None else part for part, length in zip(parts, lengths)]
    for part in parts:
        comm.Bcast(part)
    return parts


# The three checks. Each returns (passed, what was found) and is called by all ranks.


def check_parameters(comm, model):
    """All ranks hold the same parameters, bit by bit."""
    digest = hashlib.sha256(charlm.to_host(model.params).tobytes()).digest()
    digests = np.empty((comm.size, len(digest)), np.uint8)
    comm.Allgather(np.frombuffer(digest, np.uint8), digests)
    differing = [rank for rank in range(comm.size) if (digests[rank] != digests[0]).any()]
    if differing:
        return False, f"parameters differ from rank 0's on ranks {ranks_text(differing)}"
    return True, f"parameters bitwise equal on {comm.size} {noun(comm.size, 'rank')} (SHA-256 {digest.hex()[:12]})"


def check_losses(comm, losses, text, options, xp):
    """The first losses are those of a run on one rank with the same batches; rank 0 makes that run."""
    count = min(CHECKED_STEPS, options.steps)
    worst = np.zeros(1)
    if comm.rank == 0:
        with hetccl.Comm(MPI.COMM_SELF) as alone:
            expected = [step.loss for step in islice(train(alone, new_model(options, xp), text, options), count)]
        worst[0] = np.max(np.abs(np.subtract(losses[:count], expected)) / np.abs(expected))
    comm.Bcast(worst)
    found = f"first {count} losses equal a one-process run's within {worst[0]:.1e} (limit {LOSS_TOLERANCE:.0e})"
    return bool(worst[0] <= LOSS_TOLERANCE), found


def check_time(comm, steps, options):
    """Communication leaves most of the time to the model."""
    in_allreduce = np.array([step.in_allreduce for step in steps])
    everywhere = np.empty((comm.size, len(steps)))
    comm.Allgather(in_allreduce, everywhere)
    total = np.array([sum(step.seconds for step in steps)])
    comm.Bcast(total)
    # A rank's time in the call is the all-reduce and the wait for slower ranks. The last to arrive waits for nobody:
    # the least time of any rank is the all-reduce's own.
    own = everywhere.min(axis=0).sum()
    waiting = everywhere.mean(axis=0).sum() - own
    part = own / total[0]
    found = (
        f"all-reduce {own:.2f} s of {total[0]:.1f} s, {part:.1%} (limit {options.max_share:.0%});"
        f" waiting for others {waiting / total[0]:.1%}"
    )
    return bool(part <= options.max_share), found


# The table of all-reduce times.


def timed(comm, call):
    comm.Barrier()
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def compare(comm, mpi, count):
    """Median seconds of an all-reduce of `count` float32 by hetccl and by MPI, in alternating calls."""
    send, receive = np.full(count, comm.rank, np.float32), np.empty(count, np.float32)

    def pairs(rounds):
        calls = (
            lambda: comm.Allreduce(send, receive, op=hetccl.SUM),
            lambda: mpi.Allreduce(send, receive, op=MPI.SUM),
        )
        seconds = np.array([[timed(comm, call) for call in calls] for _ in range(rounds)])
        # A call has ended when its last rank has ended. This also makes all ranks agree on the number of rounds below.
        comm.Allreduce(hetccl.IN_PLACE, seconds, op=hetccl.MAX)
        return seconds

    warm = pairs(3)
    rounds = int(np.clip(TABLE_SECONDS_PER_SIZE / warm[1:].sum(axis=1).mean(), 5, 200))
    return [statistics.median(column) for column in pairs(rounds).T]


def print_table(comm, mpi, gradient_count, say):
    name, version = MPI.get_vendor()
    peer = f"{name} {'.'.join(map(str, version))}"
    say(f"\nAll-reduce of float32, medians of alternating calls in this run ({comm.size} {noun(comm.size, 'rank')})\n")
    say(f"  {'size':>10}  {'hetccl':>12}  {peer:>16}  {'time ratio':>10}")
    for count in sorted({2, 256, 16384, gradient_count, 1 << 20}):
        ours, theirs = compare(comm, mpi, count)
        note = "  the gradient" if count == gradient_count else ""
        row = f"{size_text(4 * count):>10}  {time_text(ours):>12}  {time_text(theirs):>16}  {ours / theirs:>10.2f}"
        say(f"  {row}{note}")


# Words and pictures for the person at the terminal: 80 columns, plain ASCII.


def ranks_text(ranks):
    return " ".join(map(str, ranks))


def size_text(nbytes):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes} B"


def time_text(seconds):
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def print_header(comm, model, text, options, say):
    hosts = sorted(set(comm.allgather(MPI.Get_processor_name())))
    say(f"Training a character language model with hetccl on {comm.size} {noun(comm.size, 'rank')}\n")
    say(f"  hosts     {len(hosts)}: {', '.join(hosts)}")
    for index, island in enumerate(comm.islands):
        title = "islands   " if index == 0 else " " * 10
        name = island.label if island.label == island.vendor else f"{island.label} ({island.vendor})"
        say(f"  {title}{name}: {noun(len(island.ranks), 'rank')} {ranks_text(island.ranks)}")
    training, held_out = (len(part) / 1e6 for part in text)
    say(f"  text      Python's standard library: {training:.1f} M characters, {held_out:.1f} M more held out")
    layers = f"{options.context} characters -> {options.context} x {options.embed} -> {options.hidden}"
    say(f"  model     {layers} -> {charlm.SYMBOLS}: {model.size:,} parameters ({model.xp.__name__})")
    parts = sorted({len(share(range(options.batch), rank, comm.size)) for rank in range(comm.size)}, reverse=True)
    each = " or ".join(map(str, parts))
    say(f"  batch     {options.batch} characters, {each} per rank; gradient: {size_text(model.grad.nbytes)}")


def draw_plan(comm, model, path, say):
    """Rank 0 draws how the gradient's all-reduce travels between the ranks of these islands."""
    if comm.rank or comm.size == 1:
        return
    islands = [island.ranks for island in comm.islands]
    algorithm = select.choose("allreduce", islands, model.grad.nbytes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render.svg(build("allreduce", islands, algorithm=algorithm)), encoding="utf-8")
    say(f"  plan      {algorithm} all-reduce, drawn in {path}")


def train_and_report(comm, model, text, options, say):
    """Train; a line every few steps. Returns all steps."""
    training, held_out = text
    steps, reported = [], 0
    say(f"\n  {'step':>5}  {'train':>6}  {'held out':>8}  {'chars/s':>9}  {'all-reduce':>10}   held-out loss")
    for step in train(comm, model, training, options):
        steps.append(step)
        if step.number == 1 or step.number % options.report_every == 0 or step.number == options.steps:
            recent, reported = steps[reported:], len(steps)
            held = held_out_loss(comm, model, held_out)
            seconds = sum(s.seconds for s in recent)
            part = sum(s.in_allreduce for s in recent) / seconds
            speed = options.batch * len(recent) / seconds
            loss = statistics.fmean(s.loss for s in recent)
            say(f"  {step.number:>5}  {loss:>6.3f}  {held:>8.3f}  {speed:>9,.0f}  {part:>10.1%}   {bar(held)}")
    return steps


def bar(loss):
    """A bar on a logarithmic scale: no length is 1 nat per character, the full width is guessing blindly."""
    return "#" * max(0, round(BAR_WIDTH * np.log(loss) / np.log(np.log(charlm.SYMBOLS))))


def print_sample(model, options, say):
    say(f"\nA sample at temperature {options.temperature:g}\n")
    for line in model.sample("def ", options.sample, options.temperature, options.seed).splitlines():
        say(f"  | {line[: COLUMNS - 4]}".rstrip())


def noun(count, word):
    return word if count == 1 else word + "s"


def positive(kind):
    def parse(text):
        value = kind(text)
        if not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    parse.__name__ = kind.__name__  # argparse names it in its messages
    return parse


def parse_options(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--steps", type=positive(int), default=600, help="steps of training (%(default)s)")
    add("--batch", type=positive(int), default=1024, help="characters per step, over all ranks (%(default)s)")
    add("--context", type=positive(int), default=16, help="characters the model looks back at (%(default)s)")
    add("--embed", type=positive(int), default=32, help="numbers per embedded character (%(default)s)")
    add("--hidden", type=positive(int), default=384, help="width of the hidden layer (%(default)s)")
    add("--rate", type=positive(float), default=8e-3, help="highest learning rate (%(default)s)")
    add("--seed", type=positive(int), default=1, help="of parameters, batches and sample (%(default)s)")
    add("--sample", type=positive(int), default=400, help="characters of text to generate (%(default)s)")
    add("--temperature", type=positive(float), default=0.7, help="of the generated text (%(default)s)")
    add("--report-every", type=positive(int), default=50, help="steps between progress lines (%(default)s)")
    add("--max-share", type=positive(float), default=0.5, help="of the time for the all-reduce alone (%(default)s)")
    add("--plan", type=Path, default=Path("build/train_lm_plan.svg"), help="picture to write (%(default)s)")
    add("--cpu", action="store_true", help="NumPy, even when CuPy finds a GPU")
    add("--quick", action="store_true", help="a few seconds: " + ", ".join(f"{k} {v}" for k, v in QUICK.items()))
    parser.set_defaults(**(QUICK if "--quick" in argv else {}))
    return parser.parse_args(argv)


def local_rank(mpi):
    """This rank's place among those of its host."""
    host = mpi.Split_type(MPI.COMM_TYPE_SHARED)
    rank = host.rank
    host.Free()
    return rank


def main(argv):
    mpi = MPI.COMM_WORLD
    # All ranks see the same arguments; one of them is enough to print the help or the mistake.
    with open(os.devnull, "w") as nowhere:
        out, err = (sys.stdout, sys.stderr) if mpi.rank == 0 else (nowhere, nowhere)
        with redirect_stdout(out), redirect_stderr(err):
            options = parse_options(argv)
    with hetccl.Comm(mpi) as comm:  # the one line that differs from a program for MPI

        def say(line):
            if comm.rank == 0:
                print(line, flush=True)

        xp = np if options.cpu else charlm.array_module(local_rank(mpi))
        text = load_text(comm)
        model = new_model(options, xp)
        print_header(comm, model, text, options, say)
        draw_plan(comm, model, options.plan, say)
        steps = train_and_report(comm, model, text, options, say)
        if comm.rank == 0:
            print_sample(model, options, say)

        say("\nChecks\n")
        losses = [step.loss for step in steps]
        checks = (
            check_parameters(comm, model),
            check_losses(comm, losses, text[0], options, xp),
            check_time(comm, steps, options),
        )
        for passed, found in checks:
            say(f"  {'PASS' if passed else 'FAIL'}  {found}")
        print_table(comm, mpi, model.grad.size, say)
        return 0 if all(passed for passed, _ in checks) else 1


def run(argv):
    """main(), ended on all ranks when one fails: the others would wait for it, and it for them in MPI_Finalize."""
    try:
        return main(argv)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except hetccl.HetcclError as error:
        print(f"rank {MPI.COMM_WORLD.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        status = 1
    except Exception:
        if MPI.COMM_WORLD.size == 1:
            raise
        traceback.print_exc()
        status = 1
    if MPI.COMM_WORLD.size > 1:
        MPI.COMM_WORLD.Abort(status)
    return status


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
