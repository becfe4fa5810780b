import os
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.testbed.crossing import about, cpu_ns, rss_mib, summary

FLOATS = st.floats(min_value=-1e6, max_value=1e6)


def test_percentiles_are_measured_values() -> None:
    assert {"p50": 50, "p99": 99, "max": 100, "n": 100} == summary(range(1, 101))
    assert {"p50": 3, "p99": 9, "max": 9, "n": 3} == summary([9, 1, 3])


@given(st.lists(FLOATS, min_size=1))
def test_percentiles_are_in_order(values: list[float]) -> None:
    found = summary(values)
    assert found["p50"] <= found["p99"] <= found["max"]
    assert len(values) == found["n"]


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="no values"):
        summary([])


def work_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_cpu_time_counts_work_of_every_thread_also_of_one_that_has_ended() -> None:
    before = cpu_ns(os.getpid())
    worker = threading.Thread(target=work_for, args=(0.02,))
    worker.start()
    worker.join()
    assert cpu_ns(os.getpid()) >= before + 20_000_000


def test_cpu_time_is_of_the_process_that_is_asked_for() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        before = cpu_ns(child.pid)
        work_for(0.02)
        assert cpu_ns(child.pid) < before + 20_000_000
    finally:
        child.kill()
        child.wait()
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_ns(child.pid)


def test_resident_memory_is_in_mib(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nVmRSS:\t   34816 kB\n")
    assert 34.0 == rss_mib(7, tmp_path)
    (tmp_path / "7" / "status").write_text("Name:\tkthreadd\n")
    with pytest.raises(ValueError, match="no VmRSS"):
        rss_mib(7, tmp_path)


def test_the_machine_is_named_with_its_cpu_even_where_cpuinfo_has_no_model(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("model name\t: A\nmodel name\t: A\n")
    assert "A" == about("v1", tmp_path)["cpu"]
    (tmp_path / "cpuinfo").write_text("processor : 0\n")
    assert os.uname().machine == about("v1", tmp_path)["cpu"]
