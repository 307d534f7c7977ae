"""The environment: defaults, every malformed value, unknown names, and the lines that logging writes."""

import dataclasses
import logging
import os
import pickle
import subprocess
import sys

import pytest

from hetccl import config

DEFAULTS = {
    "timeout": 300.0,
    "log": None,
    "island": None,
    "check": False,
    "algorithm": "auto",
    "single_copy": "auto",
    "spin_us": None,
    "ring_bytes": None,
    "transport": None,
    "rails": 4,
    "eager_bytes": None,
    "ib_hca": None,
    "ib_gid_index": None,
    "ib_tc": 0,
    "ib_sl": 0,
    "ib_pkey": 0,
    "ib_timeout": 18,
    "ib_retry_cnt": 6,
    "ib_rnr_retry": 6,
    "ib_min_rnr_timer": 12,
    "ib_send_queue": 256,
    "socket_ifname": None,
    "tcp_connections": 2,
    "verbs_lib": None,
    "host_ccl": "own",
    "cuda_lib": None,
    "nccl_lib": None,
    "hip_lib": None,
    "rccl_lib": None,
    "oneccl_lib": None,
    "cuda_visible_devices": None,
    "hip_visible_devices": None,
    "rocr_visible_devices": None,
}


def test_defaults():
    assert dataclasses.asdict(config.load({})) == DEFAULTS
    assert config.load({}) == config.Config()


@pytest.mark.parametrize(
    "name, text, field, value",
    [
        ("HETCCL_TIMEOUT", "0.5", "timeout", 0.5),
        ("HETCCL_TIMEOUT", "1e3", "timeout", 1000.0),
        ("HETCCL_LOG", "debug", "log", "debug"),
        ("HETCCL_ISLAND", "nvidia-1.a", "island", "nvidia-1.a"),
        ("HETCCL_CHECK", "1", "check", True),
        ("HETCCL_CHECK", "0", "check", False),
        ("HETCCL_ALGORITHM", "ring", "algorithm", "ring"),
        ("HETCCL_ALGORITHM", "auto", "algorithm", "auto"),
        ("HETCCL_SINGLE_COPY", "off", "single_copy", "off"),
        ("HETCCL_SPIN_US", "0", "spin_us", 0),
        ("HETCCL_RING_BYTES", "4096", "ring_bytes", 4096),
        ("HETCCL_RING_BYTES", "256K", "ring_bytes", 256 * 1024),
        ("HETCCL_RING_BYTES", "2MiB", "ring_bytes", 2 * 1024 * 1024),
        ("HETCCL_TRANSPORT", "auto", "transport", None),
        ("HETCCL_TRANSPORT", "tcp", "transport", ("tcp",)),
        ("HETCCL_TRANSPORT", "shm,verbs", "transport", ("shm", "verbs")),
        ("HETCCL_RAILS", "1", "rails", 1),
        ("HETCCL_EAGER_BYTES", "8K", "eager_bytes", 8192),
        ("HETCCL_IB_HCA", "mlx5_0,mlx5_1:2", "ib_hca", (("mlx5_0", "mlx5_1:2"), False)),
        ("HETCCL_IB_HCA", "^mlx5_2", "ib_hca", (("mlx5_2",), True)),
        ("HETCCL_IB_GID_INDEX", "3", "ib_gid_index", 3),
        ("HETCCL_IB_GID_INDEX", "auto", "ib_gid_index", None),
        ("HETCCL_IB_TC", "106", "ib_tc", 106),
        ("HETCCL_IB_SL", "15", "ib_sl", 15),
        ("HETCCL_IB_PKEY", "65535", "ib_pkey", 65535),
        ("HETCCL_IB_TIMEOUT", "31", "ib_timeout", 31),
        ("HETCCL_IB_RETRY_CNT", "0", "ib_retry_cnt", 0),
        ("HETCCL_IB_RNR_RETRY", "7", "ib_rnr_retry", 7),
        ("HETCCL_IB_MIN_RNR_TIMER", "1", "ib_min_rnr_timer", 1),
        ("HETCCL_IB_SEND_QUEUE", "16", "ib_send_queue", 16),
        ("HETCCL_SOCKET_IFNAME", "^docker0,lo", "socket_ifname", (("docker0", "lo"), True)),
        ("HETCCL_TCP_CONNECTIONS", "4", "tcp_connections", 4),
        ("HETCCL_VERBS_LIB", "/opt/rdma/libibverbs.so.1", "verbs_lib", "/opt/rdma/libibverbs.so.1"),
        ("HETCCL_HOST_CCL", "own", "host_ccl", "own"),
        ("HETCCL_HOST_CCL", "oneccl", "host_ccl", "oneccl"),
        ("HETCCL_CUDA_LIB", "libcuda.so.1", "cuda_lib", "libcuda.so.1"),
        ("HETCCL_NCCL_LIB", "/opt/a b/libnccl.so.2", "nccl_lib", "/opt/a b/libnccl.so.2"),
        ("HETCCL_HIP_LIB", "libamdhip64.so.6", "hip_lib", "libamdhip64.so.6"),
        ("HETCCL_RCCL_LIB", "librccl.so", "rccl_lib", "librccl.so"),
        ("HETCCL_ONECCL_LIB", "libccl.so.2", "oneccl_lib", "libccl.so.2"),
        ("CUDA_VISIBLE_DEVICES", "", "cuda_visible_devices", ""),
        ("HIP_VISIBLE_DEVICES", "1,0", "hip_visible_devices", "1,0"),
        ("ROCR_VISIBLE_DEVICES", "GPU-1", "rocr_visible_devices", "GPU-1"),
    ],
)
def test_value(name, text, field, value):
    assert dataclasses.asdict(config.load({name: text})) == {**DEFAULTS, field: value}


@pytest.mark.parametrize(
    "name, text",
    [
        *(("HETCCL_TIMEOUT", text) for text in ["", "0", "-1", "nan", "inf", "5s", "five"]),
        *(("HETCCL_LOG", text) for text in ["", "INFO", "warning", "1"]),
        *(("HETCCL_ISLAND", text) for text in ["", " ", "a b", "a\n", "x" * 65]),
        *(("HETCCL_CHECK", text) for text in ["", "2", "true", "01"]),
        *(("HETCCL_ALGORITHM", text) for text in ["", "Ring", "a-b", "1"]),
        *(("HETCCL_SINGLE_COPY", text) for text in ["", "on", "0"]),
        *(("HETCCL_SPIN_US", text) for text in ["", "-1", "1.5", "1_000", " 1", "9" * 30]),
        *((f"HETCCL_{name}_LIB", "") for name in ["CUDA", "NCCL", "HIP", "RCCL", "ONECCL", "VERBS"]),
        *(("HETCCL_TRANSPORT", text) for text in ["", "rdma", "tcp,tcp", "tcp,", "shm verbs", "auto,tcp"]),
        *(("HETCCL_RAILS", text) for text in ["", "0", "5", "auto"]),
        *(("HETCCL_EAGER_BYTES", text) for text in ["", "0", "16k", "-1"]),
        *(("HETCCL_IB_HCA", text) for text in ["", "^", "mlx5_0,", "mlx5 0", "mlx5_0:x", "mlx5_0,^mlx5_1"]),
        *(("HETCCL_IB_GID_INDEX", text) for text in ["", "-1", "1024", "x"]),
        *((f"HETCCL_IB_{name}", "-1") for name in ["TC", "SL", "PKEY", "RNR_RETRY", "MIN_RNR_TIMER"]),
        *(("HETCCL_IB_TC", "256"), ("HETCCL_IB_SL", "16"), ("HETCCL_IB_PKEY", "65536")),
        *(("HETCCL_IB_TIMEOUT", text) for text in ["", "0", "32", "1e1"]),
        *(("HETCCL_IB_RETRY_CNT", text) for text in ["", "8", "-1"]),
        *(("HETCCL_IB_RNR_RETRY", "8"), ("HETCCL_IB_MIN_RNR_TIMER", "32")),
        *(("HETCCL_IB_SEND_QUEUE", text) for text in ["", "7", "16385"]),
        *(("HETCCL_SOCKET_IFNAME", text) for text in ["", "^", "eth0;eth1"]),
        *(("HETCCL_TCP_CONNECTIONS", text) for text in ["", "0", "17"]),
        *(("HETCCL_HOST_CCL", text) for text in ["", "auto", "oneCCL", "nccl"]),
        *(("HETCCL_RING_BYTES", text) for text in ["", "0", "-1", "K", "1.5M", "256k", "1T"]),
    ],
)
def test_malformed(name, text):
    with pytest.raises(ValueError) as caught:
        config.load({name: text})
    message = str(caught.value)
    assert message.startswith(f"{name}={text!r} ")
    assert config.variables()[name].metadata["type"].words in message


@pytest.mark.parametrize(
    "name, near",
    [
        ("HETCCL_TIMEOUTS", "HETCCL_TIMEOUT"),
        ("HETCCL_ISLNAD", "HETCCL_ISLAND"),
        ("HETCCL_island", "HETCCL_ISLAND"),
        ("HETCCL_ALGO", "HETCCL_ALGORITHM"),
        ("HETCCL_SPIN", "HETCCL_SPIN_US"),
        ("HETCCL_LOGGING", "HETCCL_LOG"),
        ("HETCCL_NCCL_PATH", "HETCCL_NCCL_LIB"),
        ("HETCCL_HOSTCCL", "HETCCL_HOST_CCL"),
    ],
)
def test_unknown_suggests_the_nearest(name, near):
    with pytest.raises(ValueError) as caught:
        config.load({name: "1"})
    assert str(caught.value) == f"{name} is not a variable of hetccl: did you mean {near}?"


def test_unknown_without_a_near_one_lists_all():
    with pytest.raises(ValueError) as caught:
        config.load({"HETCCL_QQQ": "1"})
    assert all(name in str(caught.value) for name in config.variables() if name.startswith("HETCCL_"))


def test_all_problems_at_once():
    with pytest.raises(ValueError) as caught:
        config.load({"HETCCL_TIMEOUT": "x", "HETCCL_CHECK": "x", "HETCCL_CHEKC": "1"})
    assert len(str(caught.value).splitlines()) == 3


def test_others_are_left_alone():
    assert config.load({"PATH": "x", "NCCL_DEBUG": "X", "hetccl_timeout": "x", "A_HETCCL_X": "1"}) == config.Config()


def test_reads_the_process_environment(monkeypatch):
    monkeypatch.setenv("HETCCL_TIMEOUT", "7")
    assert config.load().timeout == 7.0


def test_what_is_offered_does_not_replace_the_users(monkeypatch):
    monkeypatch.setenv("CCL_LOG_LEVEL", "info")
    monkeypatch.delenv("CCL_ATL_SHM", raising=False)
    config.offer({"CCL_LOG_LEVEL": "error", "CCL_ATL_SHM": "1"})
    offered = os.environ["CCL_LOG_LEVEL"], os.environ.pop("CCL_ATL_SHM")
    assert offered == ("info", "1")


def test_frozen_and_picklable():
    loaded = config.load({"HETCCL_ISLAND": "a"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.timeout = 1.0
    assert pickle.loads(pickle.dumps(loaded)) == loaded


@pytest.fixture
def clean_logger():
    yield
    config.setup_logging(None, 0)
    config.LOGGER.setLevel(logging.NOTSET)


def test_log_lines_carry_rank_and_host(capsys, clean_logger):
    config.setup_logging("info", 3)
    config.setup_logging("info", 4)
    logging.getLogger("hetccl.shm").info("ring of %d bytes", 64)
    logging.getLogger("hetccl").debug("not at this level")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"hetccl {os.uname().nodename} rank 4 INFO: ring of 64 bytes")


def test_debug_level(capsys, clean_logger):
    config.setup_logging("debug", 0)
    logging.getLogger("hetccl").debug("seen")
    assert capsys.readouterr().err.endswith("DEBUG: seen\n")


def test_silent_by_default():
    code = "import logging, hetccl.config; logging.getLogger('hetccl').error('x')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == done.stderr == ""
