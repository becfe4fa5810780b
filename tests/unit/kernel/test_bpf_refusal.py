"""Whatever keeps an eBPF program out is told in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from reactor.kernel.bpf_refusal import explain, verifier_log

# What libbpf 1.1 said of a program on 6.1, shortened.
REFUSED = (
    "libbpf: prog 'oom_kill': BPF program load failed: Invalid argument\n",
    """libbpf: prog 'oom_kill': -- BEGIN PROG LOAD LOG --
; return old->rss_stat.count[MM_FILEPAGES].counter
60: (79) r2 = *(u64 *)(r4 +728)
Type 'atomic_long_t' is not a struct
processed 53 insns (limit 1000000) max_states_per_insn 0 total_states 3 peak_states 3 mark_read 1
-- END PROG LOAD LOG --
""",
    "libbpf: prog 'oom_kill': failed to load: -22\n",
)


@pytest.fixture
def btf(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.touch()
    return path


def test_verifiers_last_words_are_the_reason_and_its_log_is_kept(btf: Path) -> None:
    text, log = explain(errno.EINVAL, REFUSED, btf=btf)
    assert "Type 'atomic_long_t' is not a struct (Invalid argument)" == text
    assert log.startswith("; return old->rss_stat")
    assert log == verifier_log(REFUSED)


def test_refusal_without_a_verifiers_log_names_the_capabilities(btf: Path) -> None:
    messages = ["libbpf: prog 'memory_charge': BPF program load failed: Operation not permitted\n"]
    text, log = explain(errno.EPERM, messages, btf=btf)
    assert text == "Operation not permitted; needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing"
    assert log == ""


def test_function_that_the_kernel_lacks_is_named(btf: Path) -> None:
    messages = [
        "libbpf: prog 'node_charge': failed to find kernel BTF type ID of 'page_counter_charge': -3\n",
        "libbpf: failed to load object 'node'\n",
    ]
    text, _ = explain(errno.ESRCH, messages, btf=btf)
    assert text.startswith("prog 'node_charge': failed to find kernel BTF type ID of 'page_counter_charge'")
    assert "\n" not in text


def test_kernel_without_btf_is_named_before_anything_else(tmp_path: Path) -> None:
    text, _ = explain(errno.EINVAL, REFUSED, btf=tmp_path / "vmlinux")
    assert text.endswith("vmlinux: this kernel was built without CONFIG_DEBUG_INFO_BTF")


def test_error_without_any_message_is_still_told(btf: Path) -> None:
    assert (("No space left on device"), "") == explain(errno.ENOSPC, [], btf=btf)


def test_log_that_was_cut_off_is_still_read(btf: Path) -> None:
    cut = "libbpf: prog 'x': -- BEGIN PROG LOAD LOG --\n0: (95) exit\nR0 !read_ok\n"
    text, _ = explain(errno.EACCES, [cut], btf=btf)
    assert text == "R0 !read_ok (Permission denied)"
