// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory watches on any number of cgroups.
 *
 * Charges go through the page counter of the cgroup, which charges its ancestors too: reading the counters
 * from there to the root sees every watched cgroup that the charge raised. memcg charges 64 pages at a time,
 * so the counters are read once in 64 pages, and a record is written 4-250 KiB past its level.
 * (Per-page hooks such as try_charge_memcg cost 4-14 % of a loop that faults pages in; this 0.2-0.4 %.)
 *
 * By trampolines everything here reads by BTF alone, without bpf_probe_read_kernel: it also loads under lockdown
 * "confidentiality".
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "counters.bpf.h"
#include "hooks.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* By the address of the cgroup's page counter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct counter_watch);
} memory_watches SEC(".maps");

/* The root's counter, which has no parent, is left out: no watch is on it (node.bpf.c watches the node). */
static __always_inline void look_upwards(struct page_counter *counter, __u64 coming)
{
	for (int i = 0; i < MAX_CGROUP_DEPTH && counter && FIELD(counter, parent); i++) {
		__u64 key = (__u64)counter;
		struct counter_watch *watch = bpf_map_lookup_elem(&memory_watches, &key);

		if (watch)
			look(watch, WATCHED_CGROUP_MEMORY, FIELD(counter, usage.counter) + coming);
		counter = FIELD(counter, parent);
	}
}

static __always_inline void report_limits_met(struct page_counter *counter)
{
	for (int i = 0; i < MAX_CGROUP_DEPTH && counter; i++) {
		__u64 key = (__u64)counter;
		struct counter_watch *watch = bpf_map_lookup_elem(&memory_watches, &key);

		if (watch)
			report_limit_met(watch, FIELD(counter, usage.counter));
		counter = FIELD(counter, parent);
	}
}

static __always_inline void on_charge(struct page_counter *counter, __u64 coming, bool charged)
{
	if (charged)
		look_upwards(counter, coming);
	else
		report_limits_met(counter);
}

ON_TRY_CHARGE(memory_try_charge, on_charge)
ON_CHARGE(memory_charge, on_charge)

/*
 * The cgroup is removed, or its parent takes the memory controller from it: the watch has to go before the
 * counter's memory is used for something else. Called once for each css, before it can be freed.
 */
static __always_inline void forget(struct cgroup_subsys_state *css)
{
	__u64 key = (__u64)css + bpf_core_field_offset(struct mem_cgroup, memory);
	struct counter_watch *watch = bpf_map_lookup_elem(&memory_watches, &key);
	__u64 id;

	if (!watch)
		return;
	id = watch->id;
	if (!bpf_map_delete_elem(&memory_watches, &key))
		report(RECORD_REMOVED, WATCHED_CGROUP_MEMORY, id, 0, 0, 0);
}

ON_ENTRY(mem_cgroup_css_offline, memory_removed, forget)
