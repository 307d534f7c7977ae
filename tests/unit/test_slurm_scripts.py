"""The scripts of slurm/ without Slurm: what they say where something is missing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = sorted(path.name for path in (ROOT / "slurm").glob("*.sbatch"))


@pytest.fixture
def site(tmp_path):
    """A copy of slurm/with whose cpu.env a test writes."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    (folder / "with").write_bytes((ROOT / "slurm" / "with").read_bytes())
    return folder


def run(site, *arguments, settings="", env=None):
    (site / "cpu.env").write_text(settings)
    given = {"PATH": os.environ["PATH"], "HOME": str(site), **(env or {})}
    return subprocess.run(["bash", site / "with", *arguments], env=given, capture_output=True, text=True, timeout=60)


MODULES = "module() { LOADEDMODULES=gcc/13:openmpi/5.0; [ $2 != no ]; }\n"


@pytest.mark.parametrize(
    "settings, arguments, env, message",
    [
        ("", [], {}, "give the kind of node and a command"),
        ("", ["cpu"], {}, "give the kind of node and a command"),
        ("", ["tpu", "true"], {}, "tpu.env; give the kind of node"),
        ("venv=/nowhere", ["cpu", "true"], {}, "no virtual environment /nowhere"),
        ("image=/nowhere.sif", ["cpu", "true"], {}, "no container image /nowhere.sif"),
        ("image=$0", ["cpu", "true"], {"PATH": "/bin"}, "in slurm/cpu.env, and no apptainer here"),
        ("", ["cpu", "no-such-command"], {}, "no command no-such-command"),
        ("if", ["cpu", "true"], {}, "cpu.env has a mistake"),
        (f"{MODULES}modules=(openmpi/4)", ["cpu", "true"], {}, "no module openmpi/4"),
        (f"{MODULES}modules=(no)", ["cpu", "true"], {}, "no module no"),
        ("", ["cpu", "python"], {"SLURM_STEP_NUM_TASKS": "2"}, "srun started 2 ranks without a process manager"),
    ],
)
def test_what_is_missing(site, settings, arguments, env, message):
    done = run(site, *arguments, settings=settings, env=env)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.skipif(
    any(Path(p).exists() for p in ("/etc/profile.d/lmod.sh", "/etc/profile.d/modules.sh")), reason="module"
)
def test_no_command_module(site):
    done = run(site, "cpu", "true", settings="modules=(openmpi)")
    assert done.returncode == 2
    assert "modules=(openmpi) in slurm/cpu.env, and this node has no command module" in done.stderr


@pytest.mark.parametrize("module", ["gcc/13", "openmpi", "openmpi/5.0"])
def test_modules_are_loaded(site, module):
    done = run(site, "cpu", "sh", "-c", "echo ran", settings=f"{MODULES}modules=({module})")
    assert (done.returncode, done.stdout, done.stderr) == (0, "ran\n", "")


def test_the_virtual_environment_comes_first(site, tmp_path):
    program = tmp_path / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho own $VIRTUAL_ENV $1; exit 3\n")
    program.chmod(0o755)
    done = run(site, "cpu", "python", "a b", settings=f"venv={tmp_path}/venv")
    assert (done.returncode, done.stdout) == (3, f"own {tmp_path}/venv a b\n")


def test_a_container_gets_the_command(site, tmp_path):
    program = tmp_path / "bin" / "apptainer"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor i; do echo "$i"; done\n')
    program.chmod(0o755)
    image = tmp_path / "image.sif"
    image.touch()
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = run(site, "cpu", "python", "a b", settings=f"image={image} image_options=(--nv -B /x)", env=env)
    assert done.stdout.split("\n")[:-1] == ["exec", "--nv", "-B", "/x", str(image), "python", "a b"]


@pytest.mark.parametrize("kind, kept", [("cuda", {"CUDA"}), ("rocm", {"ROCR", "HIP"}), ("cpu", set())])
def test_no_rank_sees_another_vendors_devices(site, kind, kept):
    (site / f"{kind}.env").touch()
    env = {f"{name}_VISIBLE_DEVICES": "0" for name in ("CUDA", "ROCR", "HIP")}
    done = run(site, kind, "env", env=env)
    assert set(re.findall(r"^(\w+)_VISIBLE_DEVICES=0$", done.stdout, re.MULTILINE)) == kept


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_batch_script_started_by_hand(script):
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["bash", ROOT / "slurm" / script], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert f"this script is for sbatch, as in: sbatch slurm/{script}" in done.stderr


@pytest.mark.parametrize("size, message", [("1", "1 component, not 2"), (None, "1 component, not 2")])
def test_one_component_where_there_should_be_two(size, message):
    env = {"PATH": os.environ["PATH"], **({"SLURM_HET_SIZE": size} if size else {})}
    command = "cd slurm && . ./job.sh && two_components"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert message in done.stderr


def described():
    """The text of slurm/README.md, its code included."""
    return (ROOT / "slurm" / "README.md").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_readme_explains_each_option(name):
    options = re.findall(r"^#+SBATCH (--[\w-]+|hetjob)", (ROOT / "slurm" / name).read_text(), re.MULTILINE)
    assert len(options) > 5
    assert [option for option in options if f"SBATCH {option}`" not in described()] == []


def test_the_readme_names_each_file():
    files = {str(path.relative_to(ROOT / "slurm")) for path in (ROOT / "slurm").glob("**/*[!~]") if path.is_file()}
    assert {name for name in files if f"`{name}`" not in described()} == {"README.md"}


DEFINITIONS = sorted((ROOT / "slurm" / "apptainer").glob("*.def"))


def section(path, name):
    return re.search(rf"^%{name}\n((?:    .*\n|\n)+)", path.read_text() + "\n", re.MULTILINE)[1]


@pytest.mark.parametrize("path", DEFINITIONS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["post", "environment", "test"])
def test_scripts_of_images_are_sound(path, name):
    done = subprocess.run(["sh", "-n"], input=section(path, name), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_both_images_take_one_wheel():
    assert len(DEFINITIONS) == 2
    wheels = {section(path, "files") for path in DEFINITIONS}
    systems = {re.search(r"ubuntu-?(\d\d\.\d\d)", path.read_text())[1] for path in DEFINITIONS}
    assert wheels == {"    dist/hetccl-*-cp312-*.whl /opt/\n\n"} and systems == {"24.04"}
