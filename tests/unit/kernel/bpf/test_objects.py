"""Whatever keeps an eBPF program out is told in one line."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from reactor.kernel.bpf.objects import explain

# What the verifier of 6.1 said of a program, shortened.
LOG = """\
; return old->rss_stat.count[MM_FILEPAGES].counter
60: (79) r2 = *(u64 *)(r4 +728)
Type 'atomic_long_t' is not a struct
processed 53 insns (limit 1000000) max_states_per_insn 0 total_states 3 peak_states 3 mark_read 1
"""
# What that of 7.3 says, shortened.
REPORT = """

Verification failed: Register Type Safety: Unreadable register

Reason:
  R5 has never been initialized on this path, so the verifier cannot use it as an input.

Suggestion:
  Initialize R5 on every path before this instruction.

processed 1 insns (limit 1000000) max_states_per_insn 0 total_states 0 peak_states 0 mark_read 0
"""
CAPABILITIES = "needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing"


@pytest.fixture
def btf(tmp_path: Path) -> Path:
    path = tmp_path / "vmlinux"
    path.write_bytes(b"\x9f\xeb\x01")
    return path


def test_verifiers_last_words_are_the_reason(btf: Path) -> None:
    messages = ["libbpf: prog 'oom_kill': BPF program load failed: Invalid argument\n"]
    text = explain(errno.EINVAL, messages, LOG, btf=btf)
    assert text == "Type 'atomic_long_t' is not a struct (Invalid argument)"


def test_verdict_is_the_reason_also_where_a_report_for_people_follows(btf: Path) -> None:
    assert explain(errno.EACCES, [], f"0: (bf) r0 = r5\nR5 !read_ok{REPORT}", btf=btf) == (
        "R5 !read_ok (Permission denied)"
    )
    text = explain(errno.EACCES, [], REPORT, btf=btf)
    assert text == "Register Type Safety: Unreadable register (Permission denied)"


@pytest.mark.parametrize(
    "messages", [[], ["libbpf: prog 'x': BPF program load failed: Operation not permitted"]]
)
def test_refusal_without_a_verifiers_log_names_the_capabilities(btf: Path, messages: list[str]) -> None:
    assert explain(errno.EPERM, messages, "", btf=btf) == f"Operation not permitted; {CAPABILITIES}"


def test_function_that_the_kernel_lacks_is_named(btf: Path) -> None:
    messages = [
        "libbpf: prog 'node_charge': failed to find kernel BTF type ID of 'page_counter_charge': -3\n",
        "libbpf: failed to load object 'node'\n",
    ]
    text = explain(errno.ESRCH, messages, "", btf=btf)
    assert text.startswith("prog 'node_charge': failed to find kernel BTF type ID of 'page_counter_charge'")
    assert "\n" not in text


def test_function_that_the_kernel_lacks_is_reported_where_libbpf_can_not_speak(btf: Path) -> None:
    text = explain(errno.ESRCH, [], "", btf=btf)
    assert text == "No such process; a function or type that it hooks or reads is not in this kernel"


def test_kernel_without_btf_is_named_before_anything_else(tmp_path: Path) -> None:
    text = explain(errno.EINVAL, [], LOG, btf=tmp_path / "vmlinux")
    assert text.endswith("vmlinux: this kernel was built without CONFIG_DEBUG_INFO_BTF")


def test_error_without_any_message_is_still_told(btf: Path) -> None:
    assert explain(errno.ENOSPC, [], "", btf=btf) == "No space left on device"


def test_log_of_statistics_alone_is_still_a_refusal(btf: Path) -> None:
    log = "processed 53 insns (limit 1000000) max_states_per_insn 0\n"
    assert explain(errno.E2BIG, [], log, btf=btf) == "refused by the verifier (Argument list too long)"


def test_locked_down_kernel_is_named_with_what_it_refused(btf: Path, tmp_path: Path) -> None:
    lockdown = tmp_path / "lockdown"
    lockdown.write_text("none integrity [confidentiality]\n")
    refused = explain(errno.EPERM, [], "", btf=btf, lockdown=lockdown)
    assert refused.startswith("Operation not permitted; the kernel is locked down (confidentiality)")
    verified = explain(errno.EINVAL, [], LOG, btf=btf, lockdown=lockdown)
    assert "; the kernel is locked down (confidentiality)" in verified


def test_lockdown_that_allows_ebpf_is_no_reason(btf: Path, tmp_path: Path) -> None:
    lockdown = tmp_path / "lockdown"
    lockdown.write_text("none [integrity] confidentiality\n")
    assert "locked down" not in explain(errno.EPERM, [], "", btf=btf, lockdown=lockdown)
