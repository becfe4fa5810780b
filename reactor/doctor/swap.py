"""`reactor doctor` on swap: how much the machine has, where it lies, and what a kubelet makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from reactor.config.documents import load_document
from reactor.errors import ConfigError, KernelInterfaceError, ReactorError
from reactor.kernel.features import Feature
from reactor.kernel.files import parse_integer, read_file, unescape_mount
from reactor.kernel.swap import machine_swap
from reactor.model.amounts import bytes_text
from reactor.model.settings import Settings
from reactor.text import printable

SWAP: Final = "swap"
_LARGEST_BYTES: Final = 4 << 20
_COLUMNS: Final = 5
_ZSWAP: Final = "sys/module/zswap/parameters"
_BEHAVIOURS: Final = {
    "": "pods get none (swapBehavior is not set, which is NoSwap)",
    "NoSwap": "pods get none (swapBehavior NoSwap)",
    "LimitedSwap": "Burstable pods get a share (swapBehavior LimitedSwap), others none",
}


def swap_feature(settings: Settings, root: Path = Path("/")) -> Feature:
    """Return the machine's swap; available where there is some. `root` has proc and sys."""
    try:
        machine = machine_swap(root / "proc")
        if not machine.total_bytes:
            none = ["none: a threshold on swap.available is never met", *_kubelets(settings, has_swap=False)]
            return Feature(name=SWAP, available=False, detail="; ".join(none))
        found = [f"{bytes_text(machine.total_bytes)}, {bytes_text(machine.free_bytes)} free"]
        found += _areas(root / "proc/swaps")
    except (OSError, ReactorError) as error:
        return Feature(name=SWAP, available=False, detail=f"unknown: {error}")
    found += _zswap(root / _ZSWAP)
    found += _kubelets(settings, has_swap=True)
    return Feature(name=SWAP, available=True, detail="; ".join(found))


def parse_swaps(raw: bytes, interface: str = "/proc/swaps") -> tuple[str, ...]:
    """Return the names of the files and devices that are swapped to. Raises KernelInterfaceError."""
    names = []
    for line in raw.splitlines()[1:]:
        words = line.split()
        if len(words) != _COLUMNS:
            raise KernelInterfaceError(interface, line[:64], "five words")
        parse_integer(words[2], interface)
        names.append(printable(unescape_mount(words[0]).decode("utf-8", "surrogateescape")))
    return tuple(names)


def _areas(path: Path) -> Iterator[str]:
    names = parse_swaps(read_file(path), str(path))
    yield f"on {', '.join(names)}"
    if any(Path(name).name.startswith("zram") for name in names):
        yield "what is swapped to zram stays in memory, compressed: memory.available counts it as used"


def _zswap(directory: Path) -> Iterator[str]:
    """Yield that zswap keeps pages in memory before they reach the disk."""
    with suppress(OSError):
        if read_file(directory / "enabled").strip() in {b"Y", b"1"}:
            percent = read_file(directory / "max_pool_percent").strip().decode("ascii", "replace")
            yield f"zswap keeps pages compressed in memory first, in {percent} % of it at most"


def _kubelets(settings: Settings, *, has_swap: bool) -> Iterator[str]:
    """Yield what the kubelet says of swap; nothing on a plain node, or where its file can't be read."""
    if settings.kubernetes is None:
        return
    path = settings.kubernetes.kubelet_config_path
    try:
        with Path(path).open("rb") as file:
            document: Any = load_document(file.read(_LARGEST_BYTES).decode(), path)
    except (OSError, UnicodeDecodeError, ConfigError):
        return
    if not isinstance(document, Mapping):
        return
    if document.get("failSwapOn", True) is not False:
        if has_swap:
            yield f"{path}: the kubelet does not start with swap (failSwapOn is true, as by default)"
        return
    behaviour = document.get("memorySwap")
    behaviour = behaviour.get("swapBehavior") if isinstance(behaviour, Mapping) else None
    told = _BEHAVIOURS.get(behaviour or "") if isinstance(behaviour, str | None) else None
    yield f"{path}: " + (told or f"unknown swapBehavior {printable(repr(behaviour))}")
