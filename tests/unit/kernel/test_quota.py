import os
from pathlib import Path

import pytest

from reactor.kernel.quota import project_of, project_usage


def test_directory_without_a_project_has_none(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/proc")):
        fd = os.open(path, os.O_RDONLY)
        try:
            assert project_of(fd) is None
        finally:
            os.close(fd)


def test_filesystem_without_quotas_refuses(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="quotactl_fd"):
            project_usage(fd, 1)
    finally:
        os.close(fd)
