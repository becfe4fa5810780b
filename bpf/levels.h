/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What a level does when a value passes it, for programs of either loader: those that libbpf fits to the
 * kernel's BTF (watch.bpf.h) and those that BCC compiles against the kernel's headers (bcc/bcc.h). Both give,
 * before they include this:
 *
 *   reserve_record(bytes)   room for a record in `events`, NULL where it is full
 *   submit_record(record)
 *   count_lost()
 *   claim(address, old, new)   set *address to `new` if it still is `old`; return whether it was
 */
#ifndef REACTOR_LEVELS_H
#define REACTOR_LEVELS_H

#include "records.h"

#define MAX_CGROUP_DEPTH 16
#define RECLAIM_INTERVAL_NS 10000000 /* a limit that is met is met at every charge */

static __always_inline void report(__u32 kind, __u32 watched, __u64 id, __u64 value, __u64 fire, __u32 level)
{
	struct watch_record *record = reserve_record(sizeof(struct watch_record));

	if (!record) {
		count_lost();
		return;
	}
	record->kind = kind;
	record->watched = watched;
	record->at_ns = bpf_ktime_get_ns();
	record->id = id;
	record->value = value;
	record->fire = fire;
	record->level = level;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	submit_record(record);
}

/* Compare a fresh value with the watch's levels. The CPU that moves `next` writes the record. */
static __always_inline void look(struct counter_watch *watch, __u32 watched, __u64 value)
{
	for (__u32 i = 0; i < LEVELS_PER_WATCH; i++) {
		struct watch_level *level = &watch->levels[i];
		__u64 fire = level->fire, next = level->next;

		if (value >= next) {
			__u64 above = value - fire;

			if (claim(&level->next, next, value + (above > level->step ? above : level->step)))
				report(RECORD_CROSSING, watched, watch->id, value, fire, i);
		} else if (next != fire && value < level->rearm) {
			claim(&level->next, next, fire);
		}
	}
}

/*
 * Usage stands still at a limit while anonymous memory takes the place of page cache: no level is crossed,
 * yet the working set grows. A program only sees that the limit is met; user space then reads the working set.
 */
static __always_inline void report_limit_met(struct counter_watch *watch, __u64 usage)
{
	__u64 now = bpf_ktime_get_ns();
	__u64 last = watch->reclaim_ns;

	if (now - last > RECLAIM_INTERVAL_NS && claim(&watch->reclaim_ns, last, now))
		report(RECORD_RECLAIM, WATCHED_CGROUP_MEMORY, watch->id, usage, 0, 0);
}

/* Return the node's working set; the counters are not read at one moment, so it may come out below zero. */
static __always_inline __s64 working_set(__s64 anonymous, __s64 file, __s64 swap_cache, __s64 inactive_file)
{
	__s64 used = anonymous + file - swap_cache - inactive_file;

	return used > 0 ? used : 0;
}

/* Return what can be had of pages that are reclaimed: half of them stay, or the low watermarks where those are less. */
static __always_inline __s64 above_low(__u64 pages, __u64 low)
{
	__u64 half = pages >> 1;

	return pages - (half < low ? half : low);
}

/* Return what MemAvailable leaves of the node's memory: si_mem_available() in mm/show_mem.c. */
static __always_inline __s64 unavailable(const struct node_counting *counting, __s64 free, __s64 file, __s64 slab)
{
	__s64 available = free - (__s64)counting->reserved;
	__s64 used;

	available += above_low(file, counting->low) + above_low(slab, counting->low);
	used = (__s64)counting->total - (available > 0 ? available : 0);
	return used > 0 ? used : 0;
}

#endif
