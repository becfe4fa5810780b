// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory watch on the node itself. The root cgroup has no counter on v2; what counts there is the kernel's
 * own free and inactive file pages, as in /proc/meminfo: working set = all - free - inactive file.
 *
 * Read whenever memory is charged to a cgroup, and every 10-100 ms by a timer in the kernel, since much of
 * a node's memory (page tables of the root, slabs, drivers, huge pages) is charged to no cgroup.
 *
 * The counters are data symbols without BTF: reading them takes bpf_probe_read_kernel, and CAP_SYSLOG for
 * their addresses (without it /proc/kallsyms shows zeros).
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define CLOCK_MONOTONIC 1
#define SHORTEST_INTERVAL_NS 10000000
#define LONGEST_INTERVAL_NS 100000000
/* The distance to the next level from which the pause is longer: memory is allocated at 8 GiB/s at most. */
#define NS_PER_PAGE 476

/* __weak: vm_node_stat does not resolve everywhere, and a strong symbol would fail the whole load. */
extern const void vm_zone_stat __ksym __weak;
extern const void vm_node_stat __ksym __weak;

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

/* Return how many pages are free or inactive file, -1 where the kernel does not let them be read. */
static __always_inline __s64 available_pages(void)
{
	__s64 free = -1, inactive = -1;

	if (!&vm_zone_stat || !&vm_node_stat)
		return -1;
	if (bpf_probe_read_kernel(&free, sizeof(free),
				  (const void *)&vm_zone_stat +
					  sizeof(free) * bpf_core_enum_value(enum zone_stat_item, NR_FREE_PAGES)) ||
	    bpf_probe_read_kernel(&inactive, sizeof(inactive),
				  (const void *)&vm_node_stat +
					  sizeof(inactive) * bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE)))
		return -1;
	return (free > 0 ? free : 0) + (inactive > 0 ? inactive : 0);
}

/* Compare the node with its levels; return the number of pages to the next one. */
static __always_inline __u64 look_at_node(void)
{
	__u32 key = 0;
	struct counter_watch *watch = bpf_map_lookup_elem(&node_memory, &key);
	__u64 used, margin = ~0ULL;
	__s64 available;

	if (!watch || !watch->capacity)
		return margin;
	available = available_pages();
	if (available < 0)
		return margin;
	used = look_at_available(watch, available);
	for (int i = 0; i < LEVELS_PER_WATCH; i++)
		if (watch->levels[i].fire > used && watch->levels[i].fire - used < margin)
			margin = watch->levels[i].fire - used;
	return margin;
}

SEC("fexit/page_counter_try_charge")
int BPF_PROG(node_try_charge, struct page_counter *counter, unsigned long nr_pages, struct page_counter **fail,
	     bool charged)
{
	look_at_node();
	return 0;
}

SEC("fexit/page_counter_charge")
int BPF_PROG(node_charge, struct page_counter *counter, unsigned long nr_pages)
{
	look_at_node();
	return 0;
}

static int sample(void *map, __u32 *key, struct sampler *sampler)
{
	__u64 margin = look_at_node();
	__u64 pause = margin > LONGEST_INTERVAL_NS / NS_PER_PAGE ? LONGEST_INTERVAL_NS : margin * NS_PER_PAGE;

	bpf_timer_start(&sampler->timer, pause < SHORTEST_INTERVAL_NS ? SHORTEST_INTERVAL_NS : pause, 0);
	return 0;
}

struct start_result {
	__s64 available_pages; /* -1: the counters can't be read */
	__s64 timer; /* 0, or why the timer did not start */
};

/* Run once by the loader. The timer ends with the last descriptor of its map. */
SEC("syscall")
int node_start(struct start_result *result)
{
	__u32 key = 0;
	struct sampler *sampler = bpf_map_lookup_elem(&samplers, &key);

	result->available_pages = available_pages();
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
