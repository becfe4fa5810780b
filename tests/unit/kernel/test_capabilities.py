from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactor.kernel.capabilities import capability_names, effective_capabilities


@pytest.mark.parametrize(
    ("number", "name"), [(0, "CAP_CHOWN"), (5, "CAP_KILL"), (12, "CAP_NET_ADMIN"), (24, "CAP_SYS_RESOURCE"),
                         (34, "CAP_SYSLOG"), (39, "CAP_BPF"), (40, "CAP_CHECKPOINT_RESTORE")]
)  # fmt: skip
def test_capabilities_have_the_kernels_numbers(number: int, name: str) -> None:
    assert {name} == capability_names(1 << number)


@given(st.integers(0, 2**64 - 1))
def test_any_mask_has_names(mask: int) -> None:
    assert (mask & ((1 << 41) - 1)).bit_count() == len(capability_names(mask))


def test_effective_capabilities_are_read_from_the_status(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/status").write_text("Name:\tx\nThreads:\t1\nCapEff:\t0000000000000021\n")
    assert {"CAP_CHOWN", "CAP_KILL"} == effective_capabilities(tmp_path)
