/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What the programs that BCC compiles on kernels without BTF have in common. The offset of a field comes from
 * the kernel's headers, so they must be those of the running kernel.
 *
 * The kernel's memory is read by peek() alone, from numbers: BCC rewrites every expression that looks like a
 * pointer into the kernel, and does not follow a pointer through a loop. BCC rewrites calls of a map's methods
 * too, but not in macros, nor in files that are included: `make bpf` writes all of it into one file.
 */
#ifndef REACTOR_BCC_H
#define REACTOR_BCC_H

#include <linux/cgroup.h>

#define EVENT_PAGES 16

BPF_RINGBUF_OUTPUT(events, EVENT_PAGES);

/* [0]: records that found the ring buffer full. */
BPF_ARRAY(lost, u64, 1);

/* User space puts a cgroup's id here and reads its control files; the probe on that read fills in the rest. */
BPF_HASH(asked, u64, struct counters_record, 64);

#define peek(value, address) bpf_probe_read_kernel(&(value), sizeof(value), (const void *)(address))

static __always_inline void *reserve_record(u64 bytes)
{
	return events.ringbuf_reserve(bytes);
}

static __always_inline void submit_record(void *record)
{
	events.ringbuf_submit(record, 0);
}

static __always_inline void count_lost(void)
{
	int key = 0;
	u64 *count = lost.lookup(&key);

	if (count)
		lock_xadd(count, 1);
}

/*
 * BCC's code generator has no compare-and-exchange: two CPUs at the same instant write two records of one
 * crossing, and user space makes one pass of both.
 */
static __always_inline bool claim(u64 *address, u64 old, u64 new)
{
	if (*address != old)
		return false;
	*address = new;
	return true;
}

/* Return the record to be filled in for the cgroup of this css, NULL if user space has not asked for it. */
static __always_inline struct counters_record *question_about(u64 css)
{
	u64 cgroup = 0, kn = 0, id = 0;

	peek(cgroup, css + offsetof(struct cgroup_subsys_state, cgroup));
	peek(kn, cgroup + offsetof(struct cgroup, kn));
	peek(id, kn + offsetof(struct kernfs_node, id));
	return asked.lookup(&id);
}

#include "../levels.h"

#endif
