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
	RECORD_WARRANT = 5,  /* a warrant was served, or is void */
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
	__u64 level; /* how deep it lies in the hierarchy, the root at 0; BCC leaves it out */
};

/* --- warrants: the kill at the crossing, in the kernel, as user space has decided it in advance --- */

#define WARRANT_SPARED 8 /* cgroups in the victim's that are left alone */
#define WARRANT_PLACES 4096 /* pods whose growth can be bounded */

/*
 * The two lowest bits of a claim; above them is the warrant's generation. A claim of 0 is no warrant. It moves by
 * compare-and-exchange alone: the side that moves it has decided, and acts.
 */
#define CLAIM_BITS 2
#define CLAIM_STATES ((1 << CLAIM_BITS) - 1)

enum claim_state {
	CLAIM_DRAFT = 1,  /* bounds are heeded, nothing is served */
	CLAIM_LIVE = 2,
	CLAIM_SERVED = 3,
};

enum warrant_outcome {
	WARRANT_OPEN = 0,
	WARRANT_SERVED = 1,
	WARRANT_REFUSED = 2,       /* claimed, but the kernel refused the signal */
	WARRANT_EXPIRED = 3,       /* the crossing came after its time */
	WARRANT_OTHERS = 4,        /* the charge that crossed was not the victim's; the warrant stays */
	WARRANT_SHRANK = 5,        /* the victim holds less than it has to */
	WARRANT_OTHER_GREW = 6,    /* another pod has grown beyond its bound */
	WARRANT_CACHE_GREW = 7,    /* page cache has grown by more than it may: the crossing may be a reader's */
	WARRANT_NEW_CGROUP = 8,    /* a cgroup was made: it may be the pod to be evicted first */
	WARRANT_REMOVED = 9,       /* the victim's cgroup was removed */
	WARRANT_WITHDRAWN = 10,    /* user space took the claim */
	WARRANT_OUTSIDE_GREW = 11, /* memory that no pod holds has grown, and may be reclaimed first */
};

struct warrant {
	__u64 claim;
	/* What user space has decided. */
	__u64 victim; /* the id of its cgroup */
	__u64 victim_counter; /* the address of its page counter */
	__u64 victim_least; /* pages */
	__u64 watched_counter; /* whose usage crosses the level; 0: the machine's working set does */
	__u64 level; /* pages of working set: of a cgroup, what is charged less inactive page cache */
	__u64 cache_most; /* pages of page cache that may be on the machine at the crossing */
	__u64 expires_ns; /* CLOCK_MONOTONIC */
	__u64 outside_counter; /* void where this one is charged for no pod, or a pod is removed; 0: heed neither */
	__u64 active_most; /* pages of page cache that may be active at the crossing; 0: as many as there are */
	__u64 spared[WARRANT_SPARED]; /* ids of cgroups; 0: none */
	__u32 spared_levels[WARRANT_SPARED]; /* how deep they lie; the root is 0 */
	__u32 victim_level;
	/* What has come of it. */
	__u32 outcome;
	__u64 crossed_ns; /* 0: not crossed */
	__u64 signalled_ns; /* 0: no signal was sent */
	__u64 value; /* at the crossing */
	__u64 inactive; /* of it, pages of files; 0 for the machine's working set */
	__u32 pid; /* signalled */
	__s32 error; /* of the signal; 0 or a negative errno */
	char comm[COMM_BYTES];
	__u64 fire; /* pages charged at which the level may be crossed, with what was inactive when that was read */
	__u64 arrivals; /* memory cgroups that were made since the programs were loaded; of no one warrant */
};

struct warrant_record {
	__u32 kind;
	__u32 outcome;
	__u64 at_ns;
	__u64 generation;
};

/* What the programs that user space calls are given, and what they answer. */
struct warrant_order {
	__u64 generation;
	__u64 arrivals; /* as read before the pods were listed */
	__u64 result;
};

#endif
