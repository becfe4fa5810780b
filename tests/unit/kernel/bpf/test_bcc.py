"""What BCC's child answers, says and does not do, told in one line. The compiling itself is for tests/vm."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from reactor.errors import BpfError
from reactor.kernel.bpf import bcc as bpf_pins
from reactor.kernel.bpf.bcc import BccObject, BccPrograms, Toolchain
from reactor.kernel.bpf.bcc_probes import MEMORY, OOM, TASKS, symbol_addresses
from tests.support.this_machine import needs_libbpf, open_descriptors

SOURCES = Path(__file__).parents[4] / "bpf" / "bcc"
PROGRAMS = BccPrograms(name="x", kprobes={"f": "some_function"}, maps=("events",))
SHOWN = "; `reactor doctor -v` shows the log"


pytestmark = needs_libbpf

# Any filesystem will do: bpffs has no names with a dot in them, and no regular files.
HOLDER = """
import sys, time
from pathlib import Path
from reactor.kernel.bpf import bcc as bpf_pins
pins = bpf_pins.take(sys.argv[2], lambda path: (path / "map").touch(), root=Path(sys.argv[1]))
print(pins.path.name, flush=True)
sys.stdin.read()
"""


class Child:
    """Stands in for the Python that has BCC: a shell script that says what is given."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pins = directory / "pins"
        self.python = directory / "python"
        (directory / "x.bcc.c").write_text("int f(struct pt_regs *ctx) { return 0; }\n")

    @property
    def toolchain(self) -> Toolchain:
        # What this machine's kernel allows is no matter here.
        return Toolchain(python=str(self.python), sources=self.directory, pins=self.pins, ask=lambda _: None)

    def make(self, script: str, *, interrupt: Callable[[], None] = lambda: None) -> BccObject:
        self.python.write_text(f"#!/bin/sh\n{script}\n")
        self.python.chmod(stat.S_IRWXU)
        return BccObject(PROGRAMS, interrupt=interrupt, toolchain=self.toolchain)

    def refusal(self, script: str) -> str:
        """Return what is told of it, having seen that nothing stays of it."""
        before = open_descriptors()
        with pytest.raises(BpfError) as caught:
            self.make(script)
        assert before == open_descriptors()
        assert [] == os.listdir(self.pins)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def child(tmp_path: Path) -> Child:
    return Child(tmp_path)


def answer(error: str) -> str:
    return f"""printf '%s\\n' '{{"error": "{error}", "peak_bytes": 1}}'"""


def test_python_without_the_module_is_reported_with_the_package(child: Child) -> None:
    """The child itself, under a Python of which it is known that it has no bcc."""
    toolchain = replace(child.toolchain, python=sys.executable)
    with pytest.raises(BpfError, match="has no module bcc; Debian's package python3-bpfcc has it"):
        BccObject(PROGRAMS, toolchain=toolchain)


def test_missing_headers_are_named_whatever_else_was_said(child: Child) -> None:
    said = "modprobe: FATAL: kheaders not found\\nUnable to find kernel headers. Try\\nchdir: No"
    text = child.refusal(f"printf '{said}\\n' >&2; {answer('Exception: Failed to compile BPF module')}")
    assert f"no kernel headers for {os.uname().release}" in text


def test_first_error_of_the_compiler_is_the_reason(child: Child) -> None:
    said = (
        "In file included from x\\n/virtual/main.c:3:1: error: unknown type name 'u65'\\n2 errors generated."
    )
    text = child.refusal(f'printf "{said}\\n" >&2; {answer("Exception: Failed to compile BPF module")}')
    assert text == f"BCC programs x: not compiled: unknown type name 'u65'{SHOWN}"


def test_verifiers_last_words_are_the_reason(child: Child) -> None:
    said = (
        "bpf: Failed to load program: Permission denied\\n0: R1\\nR1 invalid mem access\\nprocessed 9 insns"
    )
    text = child.refusal(f'printf "{said}\\n" >&2; {answer("Exception: Failed to load BPF program f")}')
    assert text == f"BCC programs x: R1 invalid mem access (Exception: Failed to load BPF program f){SHOWN}"


def test_refusal_without_any_log_is_reported_as_it_is(child: Child) -> None:
    text = child.refusal(answer("Exception: Need super-user privileges to run"))
    assert text == "BCC programs x: Exception: Need super-user privileges to run"


def test_child_that_is_killed_for_want_of_memory_is_reported_as_such(child: Child) -> None:
    assert "ended with signal 9; it takes 250 MiB" in child.refusal("kill -9 $$")


def test_child_that_fails_is_reported_with_its_last_words(child: Child) -> None:
    text = child.refusal("echo Traceback >&2; echo 'OSError: libbcc.so.0' >&2; exit 1")
    assert text == f"BCC programs x: the compiler ended with exit status 1: OSError: libbcc.so.0{SHOWN}"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"error": null}', '{"error": null, "peak_bytes": "x"}'])
def test_answer_that_is_none_is_a_failure(child: Child, text: str) -> None:
    assert "the compiler ended with exit status 0" in child.refusal(f"echo '{text}'")


def test_child_that_pinned_nothing_is_found_out(child: Child) -> None:
    text = child.refusal("""echo '{"error": null, "peak_bytes": 1}'""")
    assert "not opened" in text


def test_python_that_is_not_there_is_named(child: Child) -> None:
    with pytest.raises(BpfError, match=r"/nowhere/python3: No such file or directory"):
        BccObject(PROGRAMS, toolchain=replace(child.toolchain, python="/nowhere/python3"))


def test_library_that_is_not_there_is_reported_before_anything_is_compiled(child: Child) -> None:
    with pytest.raises(BpfError, match=r"libbpf\.so\.99: not found"):
        BccObject(PROGRAMS, toolchain=replace(child.toolchain, libbpf="libbpf.so.99"))
    assert not child.pins.exists()


def test_source_that_was_not_built_says_how_to_build_it(child: Child) -> None:
    (child.directory / "x.bcc.c").unlink()
    with pytest.raises(BpfError, match=r"BCC source x\.bcc\.c: No such file or directory: `make bpf`"):
        BccObject(PROGRAMS, toolchain=child.toolchain)


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        (PermissionError(1, "x"), "Operation not permitted; needs CAP_BPF and CAP_PERFMON"),
        (BpfError("kprobe f", "No such file or directory"), "kprobe f: No such file or directory"),
    ],
)
def test_what_the_kernel_refuses_is_reported_before_anything_is_compiled(
    child: Child, refusal: Exception, told: str
) -> None:
    def ask(_: BccPrograms) -> None:
        raise refusal

    with pytest.raises(BpfError, match=f"BCC programs x: {told}"):
        BccObject(PROGRAMS, toolchain=replace(child.toolchain, python="/nowhere", ask=ask))


def test_what_interrupts_ends_the_child_and_leaves_nothing(child: Child) -> None:
    class CancelledError(Exception):
        pass

    def interrupt() -> None:
        if (child.directory / "pid").exists():
            raise CancelledError

    with pytest.raises(CancelledError):
        child.make(f"echo $$ >{child.directory}/pid; exec sleep 1000", interrupt=interrupt)
    assert [] == os.listdir(child.pins)
    pid = int((child.directory / "pid").read_text())
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("programs", [MEMORY, TASKS, OOM], ids=lambda programs: programs.name)
def test_source_has_every_program_and_map_that_is_asked_of_it(programs: BccPrograms) -> None:
    files = (f"{programs.name}.bcc.c", "bcc.h", "walk.h")
    text = "".join((SOURCES / name).read_text() for name in files)
    for program in (*programs.kprobes, *([programs.step] if programs.step else [])):
        assert f"\nint {program}(struct pt_regs *ctx)" in text
    for program in programs.sampled:
        assert f"\nint {program}(struct bpf_perf_event_data *ctx)" in text
    for name in programs.maps:
        assert f"({name}, " in text


def test_addresses_of_symbols_are_read_and_others_are_not(tmp_path: Path) -> None:
    listing = tmp_path / "kallsyms"
    listing.write_text(
        "ffffffff81000000 T _stext\n"
        "ffffffff82000010 B vm_zone_stat\n"
        "ffffffff82000020 B vm_zone_stat_name\n"
        "ffffffffc0000000 t vm_node_stat\t[module]\n"
        "0000000000000000 B nr_threads\n"
    )
    found = symbol_addresses(["vm_zone_stat", "vm_node_stat", "nr_threads"], listing)
    assert {"vm_zone_stat": 0xFFFFFFFF82000010, "nr_threads": 0} == found


@pytest.fixture(autouse=True)
def _nothing_kept() -> Iterator[None]:
    yield
    bpf_pins.remove_own()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "reactor"


def fill(path: Path) -> None:
    (path / "map").touch()


def never(path: Path) -> None:
    raise AssertionError(f"{path} was filled")


def holder(root: Path, name: str) -> tuple[subprocess.Popen[str], str]:
    """Return a process that has taken pins, and its directory's name."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, root, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def ended(process: subprocess.Popen[str], *, by: int | None = None) -> None:
    with process:
        if by is not None:
            process.send_signal(by)


def names(root: Path) -> list[str]:
    return sorted(os.listdir(root))


def test_directory_has_its_final_name_once_it_is_filled_and_not_before(root: Path) -> None:
    seen: list[str] = []
    pins = bpf_pins.take("memory_1", lambda path: seen.append(path.name), root=root)
    assert seen[0].startswith("new_memory_1_")
    assert [pins.path.name] == names(root)
    assert pins.path.name.startswith("memory_1_")
    assert "." not in pins.path.name


def test_pins_that_are_let_go_serve_the_next_in_the_same_process(root: Path) -> None:
    first = bpf_pins.take("memory_1", fill, root=root)
    first.keep()
    second = bpf_pins.take("memory_1", never, root=root)
    assert second is first


def test_pins_in_use_serve_no_other_probe_in_the_same_process(root: Path) -> None:
    first = bpf_pins.take("memory_1", fill, root=root)
    second = bpf_pins.take("memory_1", fill, root=root)
    assert second.path != first.path
    assert 2 == len(names(root))


def test_pins_of_a_killed_process_are_taken_over(root: Path) -> None:
    process, name = holder(root, "memory_1")
    ended(process, by=signal.SIGKILL)
    assert [name] == names(root)
    assert name == bpf_pins.take("memory_1", never, root=root).path.name


def test_pins_of_a_killed_process_are_removed_where_they_are_of_other_programs(root: Path) -> None:
    process, _ = holder(root, "memory_1")
    ended(process, by=signal.SIGKILL)
    pins = bpf_pins.take("memory_2", fill, root=root)
    assert [pins.path.name] == names(root)


def test_pins_of_a_living_process_are_left_alone(root: Path) -> None:
    process, name = holder(root, "memory_1")
    pins = bpf_pins.take("memory_1", fill, root=root)
    assert sorted([name, pins.path.name]) == names(root)
    ended(process)
    assert [pins.path.name] == names(root)


def test_process_that_ends_by_itself_leaves_no_pins(root: Path) -> None:
    process, _ = holder(root, "memory_1")
    ended(process)
    assert [] == names(root)


def test_unfinished_directory_is_never_taken_over(root: Path) -> None:
    (root / "new_memory_1_00000000").mkdir(parents=True)
    pins = bpf_pins.take("memory_1", fill, root=root)
    assert [pins.path.name] == names(root)


def test_failure_while_filling_leaves_nothing(root: Path) -> None:
    def fail(path: Path) -> None:
        fill(path)
        raise BpfError("BCC programs memory", "refused")

    before = open_descriptors()
    with pytest.raises(BpfError, match="refused"):
        bpf_pins.take("memory_1", fail, root=root)
    assert [] == names(root)
    assert before == open_descriptors()


def test_removing_twice_is_harmless_and_leaves_no_descriptor(root: Path) -> None:
    before = open_descriptors()
    pins = bpf_pins.take("memory_1", fill, root=root)
    pins.remove()
    pins.remove()
    assert [] == names(root)
    assert before == open_descriptors()


def test_place_where_nothing_can_be_pinned_is_named_with_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BpfError, match=r"file/reactor: Not a directory; a bpf filesystem is needed"):
        bpf_pins.take("memory_1", fill, root=tmp_path / "file" / "reactor")
