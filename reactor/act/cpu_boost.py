"""CPU for killed processes: they free their memory themselves, in their quota and at their weight.

On two busy CPUs freeing 400 MiB takes 25 ms of CPU time; at a weight of 2, which is what the kubelet gives to
BestEffort pods, that was 13.6 s of time, and with 1 % of quota 1 GiB was not back after a minute. Where
process_mrelease comes in time (release.py) it does not matter, but it often does not.
"""

from __future__ import annotations

from typing import Final

from reactor.kernel.cgroup import lift_cpu_quota
from reactor.kernel.cgroup_directory import CgroupDirectory
from reactor.kernel.cgroup_files import CgroupVersion
from reactor.kernel.files import GONE, with_path

# The most that each version takes. Neither it nor the quota is put back: the pod is evicted.
_WEIGHT: Final = {CgroupVersion.V1: ("cpu.shares", b"262144"), CgroupVersion.V2: ("cpu.weight", b"10000")}


def boost_cpu(directory: CgroupDirectory | None, version: CgroupVersion) -> None:
    """Lift the CPU quotas in a cgroup, and have it outweigh its siblings. Raises OSError where refused.

    `directory` is the one in the cpu controller's hierarchy; without it (None) there is nothing to do.
    """
    if directory is None:
        return
    name, most = _WEIGHT[version]
    try:
        directory.write(name, most)
    except OSError as error:
        if error.errno not in GONE:
            raise with_path(error, f"{directory.cgroup}/{name}") from None
    finally:
        lift_cpu_quota(directory, version)
