import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reactor.errors import RefusedError
from reactor.testbed.allocator import Record, compiled_tool
from reactor.testbed.daemon_process import wait_until

MIB = 1 << 20


@pytest.fixture
def tool() -> str:
    try:
        return str(compiled_tool())
    except RefusedError as error:
        pytest.skip(f"needs a C compiler: {error}")


def test_the_tool_is_compiled_once(tool: str) -> None:
    before = os.stat(tool).st_mtime_ns
    assert tool == str(compiled_tool())
    assert before == os.stat(tool).st_mtime_ns


def test_a_directory_that_others_can_write_is_not_trusted_and_what_takes_its_place_is_removed(
    tool: str, tmp_path: Path
) -> None:
    shared, own = tmp_path / "cache" / "reactor", tmp_path / "own"
    shared.mkdir(parents=True)
    shared.chmod(0o777)
    own.mkdir()
    asked = (
        "from reactor.testbed.allocator import compiled_tool as it; "
        "print(it(*('floor', 'bench'))); print(it(*('floor', 'bench')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", asked],
        env={**os.environ, "XDG_CACHE_HOME": str(shared.parent), "TMPDIR": str(own)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(Path, done.stdout.splitlines())
    assert first == second
    assert own in first.parents
    assert ([], []) == (list(shared.iterdir()), list(own.iterdir()))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away: run as root")
@pytest.mark.parametrize(
    "whose", ["a parent of the cache", "a link to it", "the temporary directory's parent"]
)
def test_root_executes_nothing_from_where_a_user_could_exchange_a_directory(
    tool: str, tmp_path: Path, whose: str
) -> None:
    """As with `sudo -E`: the cache is below the home of the user, who can rename what is root's in it."""
    home, other = tmp_path / "home", tmp_path / "other"
    (home / ".cache").mkdir(parents=True)
    other.mkdir()
    environment = {**os.environ, "XDG_CACHE_HOME": str(home / ".cache"), "TMPDIR": str(other)}
    if whose == "a link to it":
        (other / "cache").symlink_to(home / ".cache")
        environment["XDG_CACHE_HOME"] = str(other / "cache")
    if whose == "the temporary directory's parent":
        environment["TMPDIR"] = str(home)
    os.chown(home, 12345, -1)
    asked = "from reactor.testbed.allocator import compiled_tool; print(compiled_tool('floor', 'bench'))"
    done = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    used = Path(done.stdout.strip())
    assert home not in used.parents
    assert [] == list((home / ".cache").iterdir())
    expected = Path("/tmp") if whose == "the temporary directory's parent" else other
    assert used.parent.parent == expected
    assert not used.exists()


def test_without_a_compiler_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RefusedError, match="apt-get install gcc"):
        compiled_tool("floor", "bench")


def test_what_make_bpf_has_built_of_this_very_source_is_used_without_a_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "boxed"
    (package / "compiled").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "program.c").write_text("int main(void) { return 0; }\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    named = hashlib.sha256((package / "program.c").read_bytes()).hexdigest()[:16]
    built = package / "compiled" / f"program-{named}-{os.uname().machine}"
    built.touch(0o755)
    assert built == compiled_tool("program", "boxed")
    (package / "program.c").write_text("int main(void) { return 1; }\n")
    with pytest.raises(RefusedError, match="apt-get install gcc"):
        compiled_tool("program", "boxed")


def test_the_allocator_records_the_instant_before_the_crossing(tool: str, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("1000\n")
    with Record(tmp_path, "record") as record:
        started_ns = time.monotonic_ns()
        arguments = [str(record.path), str(usage), "1000", "0", str(MIB), "0"]
        child = subprocess.Popen([tool, "allocate", *arguments])
        record.go()
        assert wait_until(lambda: record.words()[4] >= MIB, 20)
        child.kill()
        child.wait()
        began_ns, crossed_ns, crossed_usage, last_ns, touched, max_usage, *_ = record.words()
    assert started_ns < began_ns <= crossed_ns < last_ns < time.monotonic_ns()
    assert (1000, MIB, 1000) == (crossed_usage, touched, max_usage)


def test_the_allocator_keeps_its_rate(tool: str, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("1\n")
    with Record(tmp_path, "record") as record:
        child = subprocess.Popen(
            [tool, "allocate", str(record.path), str(usage), "2", "0", str(10 * MIB), str(100 * MIB)]
        )
        record.go()
        assert wait_until(lambda: record.words()[4] >= 10 * MIB, 20)
        child.kill()
        child.wait()
        words = record.words()
    assert (words[3] - words[0]) / 1e9 >= 0.095  # never faster; slower is the machine's business
    assert 0 == words[2]  # no crossing


def test_the_observer_sees_the_end_and_the_memory_come_back(tool: str, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("5000\n")
    victim = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    with Record(tmp_path, "record") as record:
        watch = subprocess.Popen(
            [tool, "observe", str(record.path), str(usage), "100", "20000", str(victim.pid)]
        )
        assert wait_until(lambda: record.words()[0] > 0, 20)
        assert (0, 0) == record.words()[1:3]
        victim.communicate(b"\n")
        assert wait_until(lambda: record.words()[1] > 0, 20)
        with usage.open("r+") as file:  # in place, as a kernel file changes: it is never empty
            file.write("0090\n")
        assert 0 == watch.wait(60)
        ready_ns, ended_ns, _, back_ns, back_usage, *_ = record.words()
    assert ready_ns < ended_ns < back_ns
    assert 90 == back_usage


def test_the_observer_gives_up_at_its_deadline(tool: str, tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("5000\n")
    with Record(tmp_path, "record") as record:
        done = subprocess.run(
            [tool, "observe", str(record.path), str(usage), "100", "50", str(os.getpid())], check=False
        )
        assert (0, 0) == (done.returncode, record.words()[1])


def test_the_forker_counts_its_processes(tool: str) -> None:
    done = subprocess.run([tool, "fork", "1000", "0.2"], capture_output=True, text=True, check=True)
    forks, took_ns = map(int, done.stdout.split())
    assert 0 < forks <= 202
    assert took_ns >= 0.2e9


def test_wrong_arguments_are_refused_with_the_right_ones(tool: str) -> None:
    done = subprocess.run([tool, "allocate"], capture_output=True, text=True, check=False)
    assert (1, True) == (done.returncode, "allocate, observe" in done.stderr)


def test_the_loop_works_when_asked_and_reports_what_its_fastest_round_took(tool: str, tmp_path: Path) -> None:
    pages = 256
    with Record(tmp_path, "touched") as record:
        command = [tool, "touch", record.path, str(pages * 4096), "3"]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL) as loop:
            try:
                assert wait_until(lambda: record.words()[0] > 0, 30)
                assert record.words()[3] == 0
                for _ in range(2):
                    record.go()
                    assert wait_until(record.is_done, 30)
                assert record.words()[3] > pages  # a page fault takes more than a nanosecond
                assert loop.poll() is None
            finally:
                loop.kill()
