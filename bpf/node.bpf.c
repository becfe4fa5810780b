// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory watch on the node itself. The root cgroup has no counter on v2; its usage is what the kernel's own
 * counters say of anonymous and file pages, as in /proc/meminfo: working set = anonymous + file - inactive file.
 * Slab, page tables and the like are no part of it. With COUNT_MEM_AVAILABLE (node_available.bpf.c) all that
 * MemAvailable leaves of the node's memory is used, the kernel's own memory included.
 *
 * Read whenever memory is charged to a cgroup, and every 10-100 ms by a timer in the kernel: what the processes
 * of the root cgroup use is charged to none, and a charge comes before its pages are counted. Each CPU adds up to
 * 125 pages of a counter for itself first (mm/vmstat.c), for a second at the most, so the working set may be
 * seen that much late, or a page cache that is read be seen before its place on the list of inactive pages is.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "hooks.bpf.h"
#include "watch.bpf.h"
#include "node.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define CLOCK_MONOTONIC 1
#define SHORTEST_INTERVAL_NS 10000000
#define LONGEST_INTERVAL_NS 100000000
/* The distance to the next level from which the pause is longer: memory is allocated at 8 GiB/s at most. */
#define NS_PER_PAGE 476

#ifdef COUNT_MEM_AVAILABLE
extern const void vm_zone_stat __ksym __weak;
#endif

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter_watch);
} node_memory SEC(".maps");

struct sampler {
	struct bpf_timer timer;
	__u64 started;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sampler);
} samplers SEC(".maps");

#ifdef COUNT_MEM_AVAILABLE
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node_counting);
} node_counting SEC(".maps");

/* Return what MemAvailable leaves of the node's memory, -1 where the kernel does not let it be read. */
static __always_inline __s64 used_pages(void)
{
	__s64 inactive = node_pages(bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE));
	__s64 active = node_pages(bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE));
	__s64 slab = node_pages(bpf_core_enum_value(enum node_stat_item, NR_SLAB_RECLAIMABLE_B));
	__s64 other = node_pages(bpf_core_enum_value(enum node_stat_item, NR_KERNEL_MISC_RECLAIMABLE));
	__u32 key = 0;
	struct node_counting *counting = bpf_map_lookup_elem(&node_counting, &key);
	__s64 free = -1;

	if (!&vm_zone_stat ||
	    bpf_probe_read_kernel(&free, sizeof(free),
				  (const void *)&vm_zone_stat +
					  sizeof(free) * bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES)))
		return -1;
	if (!counting || inactive < 0 || active < 0 || slab < 0 || other < 0)
		return -1;
	return unavailable(counting, whole_pages(free), inactive + active, slab + other);
}
#else
static __always_inline __s64 used_pages(void)
{
	return working_set_pages();
}
#endif

/* Compare the node with its levels; return the number of pages to the next one. */
static __always_inline __u64 look_at_node(void)
{
	__u32 key = 0;
	struct counter_watch *watch = bpf_map_lookup_elem(&node_memory, &key);
	__u64 margin = ~0ULL;
	__s64 used;

	if (!watch || !watch->of_node)
		return margin;
	used = used_pages();
	if (used < 0)
		return margin;
	look(watch, WATCHED_NODE_MEMORY, used);
	for (int i = 0; i < LEVELS_PER_WATCH; i++)
		if (watch->levels[i].fire > (__u64)used && watch->levels[i].fire - used < margin)
			margin = watch->levels[i].fire - used;
	return margin;
}

static __always_inline void on_charge(struct page_counter *counter, __u64 coming, bool charged)
{
	look_at_node();
}

ON_TRY_CHARGE(node_try_charge, on_charge)
ON_CHARGE(node_charge, on_charge)

static int sample(void *map, __u32 *key, struct sampler *sampler)
{
	__u64 margin = look_at_node();
	__u64 pause = margin > LONGEST_INTERVAL_NS / NS_PER_PAGE ? LONGEST_INTERVAL_NS : margin * NS_PER_PAGE;

	bpf_timer_start(&sampler->timer, pause < SHORTEST_INTERVAL_NS ? SHORTEST_INTERVAL_NS : pause, 0);
	return 0;
}

struct start_result {
	__s64 used_pages; /* -1: the counters can't be read */
	__s64 timer; /* 0, or why the timer did not start */
};

/* Run once by the loader. The timer ends with the last descriptor of its map. */
SEC("syscall")
int node_start(struct start_result *result)
{
	__u32 key = 0;
	struct sampler *sampler = bpf_map_lookup_elem(&samplers, &key);

	result->used_pages = used_pages();
	result->timer = -1;
	if (!sampler)
		return 0;
	result->timer = bpf_timer_init(&sampler->timer, &samplers, CLOCK_MONOTONIC);
	if (result->timer)
		return 0;
	bpf_timer_set_callback(&sampler->timer, sample);
	result->timer = bpf_timer_start(&sampler->timer, SHORTEST_INTERVAL_NS, 0);
	return 0;
}
