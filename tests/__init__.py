"""The suites: unit, kernel, disk, hostile, kube, vm; the soak; upstream's own code to compare with."""
