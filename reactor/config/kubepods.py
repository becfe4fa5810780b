"""How the kubelet names the cgroup that holds all its pods.

Source: pkg/kubelet/cm, CgroupName.ToSystemd and ToCgroupfs.
"""

from __future__ import annotations

from typing import Final

KUBEPODS: Final = "kubepods"


def kubepods_cgroups(cgroup_root: str) -> tuple[str, str]:
    """Return the cgroup of all pods below the kubelet's cgroup root, by the cgroupfs and the systemd driver.

    Which of the two a node has shows in its tree; the other one does not exist.
    """
    names = [*(part for part in cgroup_root.split("/") if part), KUBEPODS]
    # systemd makes a slice's parents of the dashes in its name, so those of a part's own are escaped.
    escaped = [name.replace("-", "_") for name in names]
    slices = ["-".join(escaped[: count + 1]) + ".slice" for count in range(len(escaped))]
    return "/" + "/".join(names), "/" + "/".join(slices)
