"""What this node offers, found by trying it: features are probed, never versions.

Every probe leaves things as they were, and none raises. A probe that needs more than the caller may do says
so: run it with the daemon's own privileges.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from reactor.errors import BpfError, KernelInterfaceError, ReactorError
from reactor.kernel import libc
from reactor.kernel.capabilities import capability_names
from reactor.kernel.cgroup import CgroupTree, CgroupVersion, is_delegated
from reactor.kernel.files import read_file, with_path
from reactor.kernel.memcg_events import register_usage_level
from reactor.kernel.procfs import PROC, read_status
from reactor.kernel.psi import UNPRIVILEGED_WINDOW_US, open_trigger

_NETLINK_CONNECTOR: Final = 11
_CN_IDX_PROC: Final = 1
_NEVER_BYTES: Final = 1 << 62
_EBPF_NEEDS: Final = (
    "needs libbpf1, CAP_BPF, CAP_PERFMON, CAP_SYSLOG; a kernel with BTF (6.1 on) or headers for BCC"
)
_UNIT: Final = "system.slice/reactor.service"
_ROOT: Final = "run it as root, or give the unit the capability"

_FOR_OTHERS_FILES: Final = "CAP_DAC_OVERRIDE"
# What the daemon uses, and each for what; without it the daemon runs on, with less.
_CAPABILITIES_USED: Final = {
    "CAP_KILL": "ending processes of other users",
    "CAP_SYS_PTRACE": "process_mrelease",
    "CAP_SYS_NICE": "realtime priority",
    "CAP_IPC_LOCK": "locking its memory",
    "CAP_SYS_RESOURCE": (
        "its oom_score_adj, short pressure windows, more descriptors; "
        "oomOrder: processes can't get a lower score than a kubelet or systemd gave them"
    ),
    "CAP_NET_ADMIN": "process events",
    _FOR_OTHERS_FILES: "files of cgroups that belong to others; oomOrder: processes of users other than root",
    "CAP_BPF": "eBPF",
    "CAP_PERFMON": "eBPF",
    "CAP_SYSLOG": "the node's own counters in eBPF",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One thing that a kernel may offer. `detail` says what was found, `remedy` how to get it ("": none).

    `log` is what the kernel's verifier said of a program that it refused, in full.
    """

    name: str
    available: bool
    detail: str
    remedy: str = ""
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """The node that the probes examine; the tree is None where no memory controller is mounted."""

    tree: CgroupTree | None
    why_no_tree: str
    root: Path
    needed: Mapping[str, str]

    def present(self, name: str) -> bool:
        """Return whether some cgroup has the control file; the real root has fewer than the others."""
        if self.tree is None:
            return False
        directories = (self.tree.memory_root / child for child in ("", *self.tree.children("/")))
        return any((directory / name).exists() for directory in directories)


def probe(root: Path = Path("/"), *, for_others: bool = True) -> tuple[Feature, ...]:
    """Return every feature, in the order in which an operator wants to read them.

    `root` has proc and sys. `for_others`: files of users other than root are written: control files of
    cgroups that were delegated (a kubelet's belong to root), oom_score_adj of their processes.
    """
    node = _node(root, for_others=for_others)
    return tuple(_tried(name, remedy, probe, node) for name, remedy, probe in _PROBES)


def _node(root: Path, *, for_others: bool) -> _Node:
    try:
        tree, why_no_tree = CgroupTree.discover(root / "proc/self/mounts"), ""
    except (OSError, KernelInterfaceError) as error:
        tree, why_no_tree = None, str(error)
    return _Node(
        tree=tree, why_no_tree=why_no_tree, root=root, needed=needed_capabilities(for_others=for_others)
    )


def _tried(name: str, remedy: str, probe: Callable[[_Node], str], node: _Node) -> Feature:
    """Return the feature: `probe` returns its detail, and raises where the feature is missing."""
    try:
        return Feature(name=name, available=True, detail=probe(node))
    except _Absent as absent:
        return Feature(name=name, available=False, detail=str(absent), remedy=absent.remedy or remedy)
    except BpfError as error:
        remedy = error.remedy or remedy
        return Feature(name=name, available=False, detail=error.detail, remedy=remedy, log=error.log)
    except (OSError, ReactorError) as error:
        needs_root = isinstance(error, PermissionError)
        return Feature(name=name, available=False, detail=str(error), remedy=_ROOT if needs_root else remedy)


class _Absent(Exception):  # noqa: N818 - an answer, not an error
    """The feature isn't there; `remedy` where the probe knows better than the table."""

    def __init__(self, detail: str, remedy: str = "") -> None:
        super().__init__(detail)
        self.remedy = remedy


def _cgroup(node: _Node) -> str:
    if node.tree is None:
        raise _Absent(node.why_no_tree)
    mounted = ((name, getattr(node.tree, f"{name}_root")) for name in ("pids", "cpu", "freezer"))
    others = ", ".join(name for name, path in mounted if path is not None)
    return f"{node.tree.version}, memory at {node.tree.memory_root}; also {others or 'nothing else'}"


def _eventfd(node: _Node) -> str:
    if node.tree is None or node.tree.version is CgroupVersion.V2:
        raise _Absent("cgroup v2 has no memory thresholds")
    os.close(register_usage_level(node.tree.memory_root, _NEVER_BYTES))
    return "a threshold on the root was accepted"


def _control_file(name: str, node: _Node) -> str:
    if node.tree is not None and node.tree.version is CgroupVersion.V1:
        raise _Absent("cgroup v1 has none")
    if not node.present(name):
        raise _Absent(f"no cgroup has a {name}")
    return "present"


def _freezer(node: _Node) -> str:
    if node.tree is None or node.tree.freezer_root is None:
        raise _Absent("not mounted; a pod is killed in repeated passes instead")
    return f"at {node.tree.freezer_root}"


def _pressure(node: _Node) -> str:
    path = node.root / "proc/pressure/memory"
    os.close(open_trigger(path, "some", UNPRIVILEGED_WINDOW_US // 10, UNPRIVILEGED_WINDOW_US))
    cgroups = "cgroups too" if node.present("memory.pressure") else "the machine only"
    try:
        os.close(open_trigger(path, "some", 50_000, 500_000))
    except OSError:
        return f"windows of 2 s; {cgroups}"
    return f"windows of 500 ms; {cgroups}"


def _bpf(_: _Node) -> str:
    os.close(libc.make_map())
    return "a map was created"


def _btf(node: _Node) -> str:
    path = node.root / "sys/kernel/btf/vmlinux"
    with path.open("rb") as file:
        if file.read(2) not in {b"\x9f\xeb", b"\xeb\x9f"}:
            raise KernelInterfaceError(str(path), "something else", "BTF's magic number")
    return f"{path.stat().st_size >> 10} KiB"


def _ebpf(name: str, node: _Node) -> str:
    if node.root != Path("/"):
        raise _Absent("only the running kernel can be asked")
    from reactor.kernel.bpf import loaders as bpf_features  # noqa: PLC0415 - libbpf is loaded on nodes that ask

    found: str = getattr(bpf_features, name)()
    return found


def _lockdown(node: _Node) -> str:
    path = node.root / "sys/kernel/security/lockdown"
    try:
        modes = read_file(path)
    except FileNotFoundError:
        return "none: the kernel has no lockdown, or securityfs is not mounted"
    if b"[confidentiality]" in modes:
        raise _Absent("confidentiality: eBPF can't read kernel memory")
    return modes.partition(b"[")[2].partition(b"]")[0].decode(errors="replace") or "none"


def _process_events(node: _Node) -> str:
    listed = read_file(node.root / "proc/net/connector")
    if b"cn_proc" not in listed:
        raise _Absent("the connector has no cn_proc")
    if "CAP_NET_ADMIN" not in effective_capabilities(node.root / "proc"):
        # Since 6.6 every user may bind; asking for the events is refused later all the same.
        raise _Absent("CAP_NET_ADMIN is missing", _ROOT)
    with closing(socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)) as connector:
        connector.bind((0, _CN_IDX_PROC))
    return "the connector accepts listeners"


def _delegation(node: _Node) -> str:
    if node.tree is None or node.tree.version is CgroupVersion.V1:
        raise _Absent(
            "cgroup v1: the steward has its rlimit alone", "boot with systemd.unified_cgroup_hierarchy=1"
        )
    unit = node.tree.memory_root / _UNIT
    if not unit.is_dir():
        raise _Absent(
            f"{_UNIT} is not there; a daemon that runs elsewhere shows its bound in `reactor status`"
        )
    if not is_delegated(unit):
        raise _Absent(f"{_UNIT} is not delegated: the steward has its rlimit alone")
    return f"{_UNIT} is delegated: the steward has a cgroup of its own"


def _mrelease(_: _Node) -> str:
    try:
        libc.process_mrelease(-1, libc.PROCESS_MRELEASE_REAP_KILL)
    except OSError as error:
        if error.errno == errno.EINVAL:  # such a flag is not known: up to Linux 7.3
            return "present"
        if error.errno != errno.EBADF:
            raise
    # It kills whoever shares the victim's memory: a unit's first process and its service manager, too.
    return "present; PROCESS_MRELEASE_REAP_KILL, too, which is not used: it may kill in other pods"


def _pidfd(_: _Node) -> str:
    os.close(os.pidfd_open(os.getpid()))
    return "present"


def _capabilities(node: _Node) -> str:
    held = effective_capabilities(node.root / "proc")
    missing = [f"{name} ({use})" for name, use in node.needed.items() if name not in held]
    if missing:
        raise _Absent(f"missing: {', '.join(missing)}")
    return f"all {len(node.needed)} that are used"


def _realtime(_: _Node) -> str:
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError as error:
        raise with_path(error, "sched_setscheduler(SCHED_FIFO)") from None
    os.sched_setscheduler(0, policy, parameters)
    return "SCHED_FIFO was accepted"


def _memory_lock(_: _Node) -> str:
    libc.mlockall(libc.MCL_CURRENT | libc.MCL_ONFAULT)
    libc.munlockall()
    return "mlockall was accepted"


_PROBES: Final[tuple[tuple[str, str, Callable[[_Node], str]], ...]] = (
    ("cgroup memory controller", "boot without cgroup_disable=memory, and mount cgroup2", _cgroup),
    ("memcg eventfd", "none is needed on v2: eBPF or memory.high take its place", _eventfd),
    ("memory.high", "boot with systemd.unified_cgroup_hierarchy=1", partial(_control_file, "memory.high")),
    ("pressure stall information", "boot with psi=1", _pressure),
    ("eBPF", "needs a kernel with CONFIG_BPF_SYSCALL", _bpf),
    ("BTF", "needs a kernel with CONFIG_DEBUG_INFO_BTF", _btf),
    ("eBPF watches", _EBPF_NEEDS, partial(_ebpf, "memory_watches")),
    ("eBPF process counts", _EBPF_NEEDS, partial(_ebpf, "process_watches")),
    ("eBPF OOM kills", _EBPF_NEEDS, partial(_ebpf, "oom_kills")),
    (
        "eBPF warrants",
        "needs libbpf1, CAP_BPF, CAP_PERFMON, CAP_SYSLOG; a kernel with BTF (6.1 on)",
        partial(_ebpf, "warrants"),
    ),
    ("lockdown", "boot with lockdown=integrity or none", _lockdown),
    ("process events", "needs a kernel with CONFIG_PROC_EVENTS", _process_events),
    ("cgroup.kill", "needs cgroup v2 and Linux 5.14", partial(_control_file, "cgroup.kill")),
    ("steward's cgroup", "Delegate=memory pids in the unit, as in deploy/reactor.service", _delegation),
    ("freezer", "mount the v1 freezer hierarchy", _freezer),
    ("pidfd", "needs Linux 5.3", _pidfd),
    ("process_mrelease", "needs Linux 5.15", _mrelease),
    ("capabilities", "run it as root, or give the unit these capabilities", _capabilities),
    ("realtime", "give the unit CAP_SYS_NICE; with CONFIG_RT_GROUP_SCHED also realtime runtime", _realtime),
    ("memory lock", "give the unit CAP_IPC_LOCK, or LimitMEMLOCK=infinity", _memory_lock),
)


def needed_capabilities(*, for_others: bool) -> dict[str, str]:
    """Return the names of those that the daemon uses, and what for.

    `for_others`: files of users other than root are written.
    """
    return {name: use for name, use in _CAPABILITIES_USED.items() if for_others or name != _FOR_OTHERS_FILES}


def effective_capabilities(proc: Path = PROC) -> frozenset[str]:
    """Return what this process may do. Raises OSError, KernelInterfaceError."""
    return capability_names(read_status(proc).capabilities)
