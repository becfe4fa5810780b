/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* One accessor for each thing that kernels hold differently, with the commit that changed it. */
#ifndef REACTOR_CORE_FIXES_BPF_H
#define REACTOR_CORE_FIXES_BPF_H

#include "kernel.h"
#include <bpf/bpf_core_read.h>

/*
 * f1a7941243c1 ("mm: convert mm's rss stats into percpu_counter", 6.2) made rss_stat an array of percpu
 * counters; before, it was a struct around an array of atomics. Either way the sum may lag behind by what
 * the CPUs keep to themselves (64 pages each).
 */
struct mm_rss_stat___pre_6_2 {
	atomic_long_t count[4];
} __attribute__((preserve_access_index));

struct mm_struct___pre_6_2 {
	struct mm_rss_stat___pre_6_2 rss_stat;
} __attribute__((preserve_access_index));

static __always_inline __u64 whole_pages(__s64 count)
{
	return count > 0 ? count : 0;
}

/*
 * How many pages of memory a process has (not in swap). By bpf_probe_read_kernel: the verifier of 6.1 does
 * not follow a pointer into an array of a typedef ("Type 'atomic_long_t' is not a struct").
 */
static __always_inline __u64 mm_resident_pages(struct mm_struct *mm)
{
	struct mm_struct___pre_6_2 *old = (void *)mm;

	if (bpf_core_field_exists(old->rss_stat.count))
		return whole_pages(BPF_CORE_READ(old, rss_stat.count[MM_FILEPAGES].counter)) +
		       whole_pages(BPF_CORE_READ(old, rss_stat.count[MM_ANONPAGES].counter)) +
		       whole_pages(BPF_CORE_READ(old, rss_stat.count[MM_SHMEMPAGES].counter));
	return whole_pages(BPF_CORE_READ(mm, rss_stat[MM_FILEPAGES].count)) +
	       whole_pages(BPF_CORE_READ(mm, rss_stat[MM_ANONPAGES].count)) +
	       whole_pages(BPF_CORE_READ(mm, rss_stat[MM_SHMEMPAGES].count));
}

#endif
