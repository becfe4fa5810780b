"""Why the kernel would not take an eBPF program, as one line, out of an errno and what was said beside it."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BTF: Final = Path("/sys/kernel/btf/vmlinux")
NO_BTF: Final = f"no {BTF}: this kernel was built without CONFIG_DEBUG_INFO_BTF"

# The verifier's last words are statistics, and its own account of the program's states.
_STATISTICS: Final = re.compile(r"processed \d+ insns|peak_states|stack depth|verification time")
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


def explain(number: int, messages: Sequence[str], log: str, *, btf: Path = BTF) -> str:
    """Return why, as one line.

    `messages` are libbpf's warnings in order (none where it can't tell), `log` is the verifier's (empty: the
    program never got so far).
    """
    if not has_btf(btf):
        return NO_BTF
    text = os.strerror(number)
    if log:
        return f"{last_words(log)} ({text})"
    if number in _HINTS:
        text += f"; {_HINTS[number]}"
    warning = "" if number in {errno.EPERM, errno.EACCES} else _first(messages)
    return f"{warning} ({text})" if warning else text


def last_words(log: str) -> str:
    """Return the line in which the verifier says what it does not accept."""
    for line in reversed(log.splitlines()):
        if line.strip() and not _STATISTICS.search(line):
            return line.strip()[:_LONGEST_TEXT]
    return "refused by the verifier"


def _first(messages: Sequence[str]) -> str:
    """Return libbpf's first warning, which names what went wrong; the later ones follow from it."""
    first = next((message.strip() for message in messages if message.strip()), "")
    return " ".join(first.removeprefix("libbpf: ").split())[:_LONGEST_TEXT]
