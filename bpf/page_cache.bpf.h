/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The machine's page cache to the page: the kernel's own counters, and what each CPU has not added to them yet. */
#ifndef REACTOR_PAGE_CACHE_BPF_H
#define REACTOR_PAGE_CACHE_BPF_H

#include "node.bpf.h"

extern const void node_data __ksym __weak;
extern const void nr_node_ids __ksym __weak;
extern const void nr_cpu_ids __ksym __weak;
extern const void __per_cpu_offset __ksym __weak;

#define NO_ITEM (~0ULL)
#define MOST_UNFOLDED 4096 /* NUMA nodes times CPUs: about 0.5 ms */

/* Counters of one item less those of another, of which each CPU keeps up to 125 pages to itself. */
struct unfolded {
	__u64 item, less;
	__u32 cpus;
	__s64 pages;
};

static long add_unfolded(__u32 index, struct unfolded *found)
{
	__u32 node = index / found->cpus, cpu = index % found->cpus;
	const void *data = NULL, *counters = NULL;
	__u64 offset = 0;
	__s8 pages = 0, less = 0;

	if (bpf_probe_read_kernel(&data, sizeof(data), (const void *)&node_data + sizeof(data) * node) || !data ||
	    bpf_probe_read_kernel(&counters, sizeof(counters),
				  data + bpf_core_field_offset(struct pglist_data, per_cpu_nodestats)) ||
	    !counters ||
	    bpf_probe_read_kernel(&offset, sizeof(offset), (const void *)&__per_cpu_offset + sizeof(offset) * cpu))
		return 0;
	counters += offset + bpf_core_field_offset(struct per_cpu_nodestat, vm_node_stat_diff);
	bpf_probe_read_kernel(&pages, sizeof(pages), counters + found->item);
	if (found->less != NO_ITEM)
		bpf_probe_read_kernel(&less, sizeof(less), counters + found->less);
	found->pages += pages - less;
	return 0;
}

/*
 * Return one of the kernel's counters less another, with what CPUs have not added to them yet; -1 where the kernel does
 * not let it be read. A kernel without NUMA nodes has no `node_data`: there it is exact but for that.
 *
 * Not static: the verifier looks at it once, and not for each way through the program that calls it.
 */
__noinline __s64 exact_pages(__u64 item, __u64 less)
{
	struct unfolded found = {.item = item, .less = less};
	__s64 pages = node_pages(item), less_pages = less == NO_ITEM ? 0 : node_pages(less);
	__u32 nodes = 0;

	if (pages < 0 || less_pages < 0)
		return -1;
	if (&node_data && &nr_node_ids && &nr_cpu_ids && &__per_cpu_offset) {
		if (bpf_probe_read_kernel(&nodes, sizeof(nodes), &nr_node_ids) ||
		    bpf_probe_read_kernel(&found.cpus, sizeof(found.cpus), &nr_cpu_ids) || !found.cpus ||
		    (__u64)nodes * found.cpus > MOST_UNFOLDED)
			return -1;
		bpf_loop(nodes * found.cpus, add_unfolded, &found, 0);
	}
	return whole_pages(pages - less_pages + found.pages);
}

/* Return the machine's page cache without shared memory and tmpfs, -1 where the kernel does not let it be read. */
static __always_inline __s64 page_cache_pages(void)
{
	return exact_pages(bpf_core_enum_value(enum node_stat_item, NR_FILE_PAGES),
			   bpf_core_enum_value(enum node_stat_item, NR_SHMEM));
}

/* Return the part of it that is active, and counts as used; -1 where the kernel does not let it be read. */
static __always_inline __s64 active_cache_pages(void)
{
	return exact_pages(bpf_core_enum_value(enum node_stat_item, NR_ACTIVE_FILE), NO_ITEM);
}

#endif
