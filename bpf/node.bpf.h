/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The machine's memory by the kernel's own counters. They are data symbols without BTF: reading them takes
 * bpf_probe_read_kernel, and CAP_SYSLOG for their addresses (without it /proc/kallsyms shows zeros).
 */
#ifndef REACTOR_NODE_BPF_H
#define REACTOR_NODE_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "core_fixes.bpf.h"
#include "levels.h"

/* __weak: vm_node_stat does not resolve everywhere, and a strong symbol would fail the whole load. */
extern const void vm_node_stat __ksym __weak;

/* Return one of the kernel's counters, -1 where the kernel does not let it be read. */
static __always_inline __s64 node_pages(__u64 item)
{
	__s64 pages = -1;

	if (!&vm_node_stat ||
	    bpf_probe_read_kernel(&pages, sizeof(pages), (const void *)&vm_node_stat + sizeof(pages) * item))
		return -1;
	return whole_pages(pages);
}

/*
 * Return the node's working set, -1 where the kernel does not let it be read. Swap cache counts among the file
 * pages of the node, and not among those of any cgroup; its anonymous pages that are mapped count as such.
 */
static __always_inline __s64 working_set_pages(void)
{
	__s64 anonymous = node_pages(bpf_core_enum_value(enum node_stat_item, NR_ANON_MAPPED));
	__s64 file = node_pages(bpf_core_enum_value(enum node_stat_item, NR_FILE_PAGES));
	__s64 inactive = node_pages(bpf_core_enum_value(enum node_stat_item, NR_INACTIVE_FILE));
	__s64 swap = 0;

	if (bpf_core_enum_value_exists(enum node_stat_item___with_swap, NR_SWAPCACHE___with_swap))
		swap = node_pages(bpf_core_enum_value(enum node_stat_item___with_swap, NR_SWAPCACHE___with_swap));
	if (anonymous < 0 || file < 0 || inactive < 0 || swap < 0)
		return -1;
	return working_set(anonymous, file, swap, inactive);
}

#endif
