"""Why the kernel would not take an eBPF program, as one line, out of an errno and what was said beside it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BTF: Final = Path("/sys/kernel/btf/vmlinux")
LOCKDOWN: Final = Path("/sys/kernel/security/lockdown")
NO_BTF: Final = f"no {BTF}: this kernel was built without CONFIG_DEBUG_INFO_BTF"

_LOCKED_DOWN: Final = "the kernel is locked down (confidentiality), and shows its memory to no process"
# The verifier's last words are statistics, and its own account of the program's states.
_STATISTICS: Final = re.compile(r"processed \d+ insns|peak_states|stack depth|verification time")
# From 7.3 on a report for people follows, of some twenty lines, which begins so.
_REPORT: Final = "Verification failed: "
_LONGEST_TEXT: Final = 200
_HINTS: Final = {
    errno.EPERM: "needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing",
    errno.EACCES: "needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing",
    errno.ESRCH: "a function or type that it hooks or reads is not in this kernel",
    errno.ENOENT: "a function or type that it hooks or reads is not in this kernel",
}


def has_btf(path: Path = BTF) -> bool:
    """Return whether the kernel describes its types: whether there is BTF to be read."""
    try:
        with path.open("rb") as file:
            return file.read(2) in {b"\x9f\xeb", b"\xeb\x9f"}
    except OSError:
        return False


def locked_down(path: Path = LOCKDOWN) -> bool:
    """Return whether the kernel lets no process read its memory, root's neither."""
    try:
        return "[confidentiality]" in path.read_text()
    except OSError:
        return False


def explain(
    number: int, messages: Sequence[str], log: str, *, btf: Path = BTF, lockdown: Path = LOCKDOWN
) -> str:
    """Return why, as one line.

    `messages` are libbpf's warnings in order (none where it can't tell), `log` is the verifier's (empty: the
    program never got so far).
    """
    if not has_btf(btf):
        return NO_BTF
    if log:
        hint = f"; {_LOCKED_DOWN}" if locked_down(lockdown) else ""
        return f"{last_words(log)} ({os.strerror(number)}){hint}"
    text = explain_errno(number, lockdown=lockdown)
    warning = "" if number in {errno.EPERM, errno.EACCES} else _first(messages)
    return f"{warning} ({text})" if warning else text


def explain_errno(number: int, *, lockdown: Path = LOCKDOWN) -> str:
    """Return an errno of the eBPF system calls with what it means there."""
    text = os.strerror(number)
    if number in {errno.EPERM, errno.EACCES} and locked_down(lockdown):
        return f"{text}; {_LOCKED_DOWN}"
    return f"{text}; {_HINTS[number]}" if number in _HINTS else text


def last_words(log: str) -> str:
    """Return the line in which the verifier says what it does not accept."""
    verdict, _, report = log.partition(f"\n{_REPORT}")
    for line in reversed(verdict.splitlines()):
        if line.strip() and not _STATISTICS.search(line):
            return line.strip()[:_LONGEST_TEXT]
    return report.partition("\n")[0][:_LONGEST_TEXT] or "refused by the verifier"


def _first(messages: Sequence[str]) -> str:
    """Return libbpf's first warning, which names what went wrong; the later ones follow from it."""
    first = next((message.strip() for message in messages if message.strip()), "")
    return " ".join(first.removeprefix("libbpf: ").split())[:_LONGEST_TEXT]
