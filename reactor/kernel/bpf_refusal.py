"""Why the kernel would not take an eBPF program, as one line, out of an errno and libbpf's messages."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BTF: Final = Path("/sys/kernel/btf/vmlinux")

_LOG: Final = re.compile(r"-- BEGIN PROG LOAD LOG --\n(.*?)(?:-- END PROG LOAD LOG --|\Z)", re.DOTALL)
# The verifier's last words are statistics, and its own account of the program's states.
_STATISTICS: Final = re.compile(r"processed \d+ insns|peak_states|stack depth|verification time")
_LONGEST_TEXT: Final = 200


def explain(number: int, messages: Sequence[str], *, btf: Path = BTF) -> tuple[str, str]:
    """Return why, as one line, and the verifier's log (empty: the program never got so far).

    `messages` are libbpf's warnings, in order.
    """
    log = verifier_log(messages)
    if not btf.exists():
        return f"no {btf}: this kernel was built without CONFIG_DEBUG_INFO_BTF", log
    reason = _last_words(log) or _warning(messages)
    text = os.strerror(number)
    if number in {errno.EPERM, errno.EACCES} and not log:
        text += "; needs CAP_BPF and CAP_PERFMON, and a kernel that allows tracing"
        reason = ""
    return (f"{reason} ({text})" if reason else text), log


def verifier_log(messages: Sequence[str]) -> str:
    """Return the verifier's own log among libbpf's messages, empty where there is none."""
    return "\n".join(found[1].strip() for message in messages for found in _LOG.finditer(message))


def _last_words(log: str) -> str:
    """Return the line in which the verifier says what it does not accept."""
    for line in reversed(log.splitlines()):
        if line.strip() and not _STATISTICS.search(line):
            return line.strip()[:_LONGEST_TEXT]
    return ""


def _warning(messages: Sequence[str]) -> str:
    """Return libbpf's first warning, which names what went wrong; the later ones follow from it."""
    first = next((message.strip() for message in messages if message.strip()), "")
    return " ".join(first.removeprefix("libbpf: ").split())[:_LONGEST_TEXT]
