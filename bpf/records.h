/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the probes and user space exchange. reactor/kernel/bpf/records.py has the same layouts for Python;
 * tests/unit/kernel/bpf/test_records.py compares the two. No struct has padding: a hole would be
 * uninitialized stack, which the verifier refuses to copy to user space.
 */
#ifndef REACTOR_RECORDS_H
#define REACTOR_RECORDS_H

#define LEVELS_PER_WATCH 4 /* a soft and a hard threshold, for each of two memory signals */
#define COMM_BYTES 16

enum record_kind {
	RECORD_CROSSING = 1, /* the value rose to a level, or goes on rising above it */
	RECORD_RECLAIM = 2,  /* a charge met a limit at or below the watched cgroup: memory is being reclaimed */
	RECORD_REMOVED = 3,  /* the cgroup is gone, and its watch with it */
	RECORD_OOM_KILL = 4,
};

enum watched {
	WATCHED_CGROUP_MEMORY = 1,
	WATCHED_NODE_MEMORY = 2,
	WATCHED_CGROUP_TASKS = 3,
	WATCHED_NODE_TASKS = 4,
};

/*
 * Fires when the value is at `fire` or above, and again at doubling distances from it while the value goes
 * on rising: at fire + step, + 2 step, + 4 step... Without that, a value that falls just below the level
 * while user space reads it, and rises again, would not be reported. Fires at `fire` again once a value below
 * `rearm` was seen.
 */
struct watch_level {
	__u64 fire;
	__u64 rearm;
	__u64 step;
	__u64 next; /* the value that fires next */
};

/* Values are pages or tasks. A level that is not in use has all its values at the largest number. */
struct counter_watch {
	__u64 id; /* chosen by user space, repeated in every record */
	__u64 of_node; /* 1: a watch on the node; 0: on a cgroup, or on a node that is not watched */
	__u64 reclaim_ns; /* when its last RECORD_RECLAIM was written */
	struct watch_level levels[LEVELS_PER_WATCH];
};

/*
 * How the node's memory counts, in pages: where `total` is 0 by the working set, else as MemAvailable leaves it of
 * `total`. `reserved` is what no ordinary allocation can have, `low` the low watermarks of all zones.
 */
struct node_counting {
	__u64 total;
	__u64 reserved;
	__u64 low;
};

struct watch_record {
	__u32 kind;
	__u32 watched;
	__u64 at_ns; /* CLOCK_MONOTONIC */
	__u64 id;
	__u64 value;
	__u64 fire; /* the level that was crossed */
	__u32 level; /* its place in the watch */
	__u32 pid; /* the process that raised the value */
	char comm[COMM_BYTES];
};

#define OOM_PATH_LEVELS 12
#define OOM_NAME_BYTES 128

struct oom_cgroup {
	__u64 id; /* 0: no cgroup */
	char name[OOM_NAME_BYTES];
};

struct oom_record {
	__u32 kind;
	__u32 pid; /* the victim */
	__u64 at_ns;
	__u64 limit_cgroup; /* the cgroup whose limit was met; 0: the machine itself is out of memory */
	__u64 limit_pages; /* that limit; for the machine, the pages it has */
	__u64 usage_pages; /* charged to that cgroup; 0 for the machine */
	__u64 victim_pages; /* resident */
	char comm[COMM_BYTES];
	/*
	 * The victim's cgroup and those above it, up to the root. By name, because a cgroup is often removed
	 * before user space can resolve its id: its last process has just been killed.
	 */
	struct oom_cgroup path[OOM_PATH_LEVELS];
};

/* What the iterator returns for one cgroup: its id (the inode number) and the addresses of its counters. */
struct counters_record {
	__u64 cgroup;
	__u64 memory; /* struct page_counter, 0 without the memory controller */
	__u64 tasks; /* atomic64_t of the pids controller, 0 without it */
};

#endif
