"""examples/train_lm.py as a user runs it, its checks against planted faults, and the model's gradient.

This process never imports train_lm (it would initialize MPI here): jobs run it.
"""

import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from launch import ROOT, mpirun

sys.path.insert(0, str(ROOT / "examples"))

import charlm

SCRIPT = ROOT / "examples" / "train_lm.py"
TIMEOUT_S = 240
# A collective that hangs ends in a CommTimeout that says who is missing, before the job itself is killed.
ENV = {"HETCCL_TIMEOUT": "60"}

# Runs the example with an Allreduce that does wrong; the one-process run it is checked against is left alone.
FAULTY = """
import runpy, sys
import numpy as np
import hetccl

class Faulty(hetccl.Comm):
    calls = 0

    def Allreduce(self, send, recv, op):
        gradient = self.size > 1 and recv.dtype == np.float32 and recv.size > 10_000
        self.calls += gradient
        before = gradient and {before}
        if before:
            {change}
        super().Allreduce(send, recv, op=op)
        if gradient and not before:
            {after}

hetccl.Comm = Faulty
sys.path.insert(0, {folder!r})
sys.argv[0] = {script!r}
runpy.run_path({script!r}, run_name="__main__")
"""

# What an average of the ranks' own means does when three ranks have 342, 341 and 341 of 1,024 characters.
EQUAL_WEIGHTS = "recv *= 1024 / (3 * (342 if self.rank == 0 else 341))"


def islands(*labels):
    return [{"HETCCL_ISLAND": label} for label in labels]


def faulty(before="False", change="pass", after="pass"):
    return FAULTY.format(before=before, change=change, after=after, folder=str(SCRIPT.parent), script=str(SCRIPT))


def verdicts(output):
    return re.findall(r"^  (PASS|FAIL)  (.*)$", output, re.MULTILINE)


def held_out_losses(output):
    return [float(loss) for loss in re.findall(r"^ +\d+ +[\d.]+ +([\d.]+) +[\d,]+ +[\d.]+%", output, re.MULTILINE)]


def assert_good(output):
    assert [verdict for verdict, _ in verdicts(output)] == ["PASS"] * 3, output
    losses = held_out_losses(output)
    assert len(losses) == 5, output  # steps 1, 10, 20, 30, 40
    assert abs(losses[0] - math.log(charlm.SYMBOLS)) < 0.1, output
    assert losses[-1] < losses[0] - 1, output
    assert "A sample at temperature" in output and "the gradient" in output, output


@pytest.mark.parametrize("labels", ["A", "AB", "AAA", "AAAB", "ABABC"], ids=str)
def test_runs_on_any_islands(labels, tmp_path):
    picture = tmp_path / "made" / "plan.svg"
    arguments = ["--quick", "--cpu", "--plan", picture]
    job = mpirun(len(labels), SCRIPT, *arguments, per_rank_env=islands(*labels), env=ENV, timeout=TIMEOUT_S)
    output = job.stdout[0]
    assert_good(output)
    assert job.stdout[1:] == ("",) * (len(labels) - 1), job.report()
    assert job.stderr == ("",) * len(labels), job.report()
    for label in sorted(set(labels)):
        ranks = " ".join(str(rank) for rank, other in enumerate(labels) if other == label)
        assert re.search(rf"{label} \(host\): ranks? {ranks}$", output, re.MULTILINE), output
    # Host names and the picture's path are as long as they are.
    lines = [line for line in output.splitlines() if "hosts " not in line and str(picture) not in line]
    assert output.isascii() and max(map(len, lines)) <= 80, output
    assert picture.exists() == (len(labels) > 1)
    if picture.exists():
        assert "<svg" in picture.read_text() and str(picture) in output


def test_runs_without_mpirun(tmp_path):
    command = [sys.executable, str(SCRIPT), "--quick", "--cpu", "--seed", "2"]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **ENV}
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=TIMEOUT_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert_good(done.stdout)


def test_more_ranks_than_characters_in_a_batch(tmp_path):
    arguments = ["--quick", "--cpu", "--batch", 3, "--steps", 25, "--plan", tmp_path / "plan.svg"]
    output = mpirun(4, SCRIPT, *arguments, env=ENV, timeout=TIMEOUT_S).stdout[0]
    assert [verdict for verdict, _ in verdicts(output)] == ["PASS"] * 3, output


@pytest.mark.parametrize(
    ("failed", "fault"),
    [
        pytest.param(0, {"after": "recv.view(np.int32)[:] ^= self.rank == 1"}, id="last_bits_on_one_rank"),
        pytest.param(1, {"before": "self.rank == 2", "change": "recv[:] = 0"}, id="lost_contribution"),
        pytest.param(1, {"before": "True", "change": EQUAL_WEIGHTS}, id="ranks_weighed_equally"),
    ],
)
def test_checks_find_faults(failed, fault, tmp_path):
    arguments = ["--quick", "--cpu", "--batch", 1024, "--plan", tmp_path / "plan.svg"]
    job = mpirun(3, faulty(**fault), *arguments, env=ENV, timeout=TIMEOUT_S, check=False)
    found = [verdict for verdict, _ in verdicts(job.stdout[0])]
    assert found[failed] == "FAIL" and found[1 - failed] == ("PASS" if failed else found[1]), job.report()
    assert job.returncode == 1, job.report()


def test_time_limit_is_a_check(tmp_path):
    arguments = ["--quick", "--cpu", "--max-share", 1e-9, "--plan", tmp_path / "plan.svg"]
    job = mpirun(2, SCRIPT, *arguments, env=ENV, timeout=TIMEOUT_S, check=False)
    assert [verdict for verdict, _ in verdicts(job.stdout[0])] == ["PASS", "PASS", "FAIL"], job.report()
    assert job.returncode == 1, job.report()


@pytest.mark.parametrize("error", ["RuntimeError", "hetccl.PeerError"])
def test_error_on_one_rank_ends_the_job(error, tmp_path):
    program = faulty(before="self.rank == 1 and self.calls == 5", change=f"raise {error}('planted')")
    job = mpirun(3, program, "--quick", "--cpu", "--plan", tmp_path / "plan.svg", timeout=60, check=False)
    assert job.returncode != 0, job.report()
    assert "planted" in job.stderr[1] and ("Traceback" in job.stderr[1]) == (error == "RuntimeError"), job.report()
    assert not verdicts(job.stdout[0]), job.report()


BAD_OPTIONS = [["--steps", "0"], ["--batch", "many"], ["--rate", "nan"], ["--seed", "-1"], ["--quik"]]


@pytest.mark.parametrize("arguments", BAD_OPTIONS, ids=" ".join)
def test_bad_options_are_refused_once(arguments):
    job = mpirun(2, SCRIPT, *arguments, timeout=60, check=False)
    assert job.returncode == 2, job.report()
    assert arguments[0] in job.stderr[0] and job.stderr[1] == "", job.report()


def test_help_is_printed_once():
    job = mpirun(2, SCRIPT, "--help", timeout=60)
    assert "--steps" in job.stdout[0] and job.stdout[1] == "", job.report()


@pytest.fixture
def small():
    """A small float64 model and a batch of examples in which symbols repeat."""
    model = charlm.Model(context=3, embed=4, hidden=5, seed=7, dtype=np.float64)
    model.params += np.random.default_rng(8).normal(0, 0.3, model.size)
    text = np.random.default_rng(9).integers(0, 6, 200).astype(np.uint8)
    return model, charlm.examples(text, np.arange(3, 40), 3)


def test_gradient_equals_central_differences(small):
    model, (contexts, targets) = small
    model.backward(contexts, targets, total=50)
    assert model.grad[-1] == pytest.approx(model.loss(contexts, targets, 50), rel=1e-12)
    step = 1e-6
    expected = np.empty(model.size)
    for index in range(model.size):
        kept = model.params[index]
        model.params[index] = kept + step
        above = model.loss(contexts, targets, 50)
        model.params[index] = kept - step
        expected[index] = (above - model.loss(contexts, targets, 50)) / (2 * step)
        model.params[index] = kept
    np.testing.assert_allclose(model.grad[:-1], expected, atol=1e-8)
    for name, gradient in model.g.items():
        assert np.abs(gradient).max() > 1e-3, name


def test_loss_equals_log_probability_by_hand(small):
    model, (contexts, targets) = small
    total = 0.0
    for context, target in zip(contexts, targets):
        inputs = np.concatenate([model.w["embedding"][symbol] for symbol in context])
        hidden = np.maximum(inputs @ model.w["hidden"] + model.w["hidden_bias"], 0)
        scores = hidden @ model.w["output"] + model.w["output_bias"]
        total -= math.log(np.exp(scores[target]) / np.exp(scores).sum())
    assert model.loss(contexts, targets, 50) == pytest.approx(total / 50, rel=1e-12)


def test_examples_are_the_symbols_before_each_position():
    contexts, targets = charlm.examples(np.arange(10, dtype=np.uint8), np.array([3, 9]), 3)
    assert contexts.tolist() == [[0, 1, 2], [6, 7, 8]] and targets.tolist() == [3, 9]


def test_text_is_the_standard_library_in_two_disjoint_parts():
    training, held_out = charlm.read_text()
    assert held_out.size > 50_000 and training.size > 4 * held_out.size
    assert "def __init__(self" in charlm.decode(training[:200_000])
    assert charlm.decode(charlm.encode("a b\n\tß~".encode())) == "a b\n???~"


def test_sample_repeats_with_its_seed_and_differs_with_another(small):
    model, _ = small
    first, again, other = (model.sample("de", 40, 0.8, seed) for seed in (1, 1, 2))
    assert first == again != other and first.startswith("de") and len(first) == 42
