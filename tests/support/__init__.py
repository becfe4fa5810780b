"""What several suites need, one concept a module.

- `waiting`      until something holds
- `builders`     thresholds, observations and pods from what matters in them
- `rules`        a rule about thrashing, and its firing
- `this_machine` the cgroups and the compiler of the machine that the tests run on
- `yard`         cgroups of a test's own with pods to kill in them
- `processes`    what runs in a pod: memory that is held, files that are written
- `daemon`       `reactor run` as a process of its own, and waiting until so many of its passes have gone by
- `mounting`     filesystems in image files
- `disks`        a virtual node whose disk is one of them
- `kubelet_tree` a kubelet's cgroups and files, as directories
- `trees`        trees of directories, wide and deep
- `trials`       what the suites of hostile neighbours count
- `node_in_files` a virtual node as a directory tree, whose pods are processes that a kill does end
- `part_faults`  failures of the daemon's parts, at the moment that a test wants
- `failures`     failures of a long suite, shown when they happen
- `api_faults`   an API server that answers as a test says
- `journald`     a systemd-journald of a test's own
- `monitoring`   what deploy/monitoring asks Prometheus for

The virtual machines get this package beside their own tests, without the source tree: `waiting`, `daemon`,
`failures`, `processes` and `mounting` need the standard library, Trio and pytest alone.
"""
