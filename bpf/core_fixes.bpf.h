/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * What differs between kernels, or is missing in some, each with the commit or option that decides.
 *
 * The sources are compiled against the types of one kernel and loaded into others. Types whose name ends in
 * ___ and a word are declared here instead of taken from vmlinux.h: CO-RE looks for them in the running
 * kernel by what stands before the ___.
 */
#ifndef REACTOR_CORE_FIXES_BPF_H
#define REACTOR_CORE_FIXES_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Only with CONFIG_CGROUP_PIDS; the enumerator's value depends on what else is configured. */
struct pids_cgroup___optional {
	atomic64_t counter;
};

enum cgroup_subsys_id___optional {
	pids_cgrp_id___optional = 1,
};

/* Only with CONFIG_SWAP, from b6038942480e ("mm: memcg: add swapcache stat for memcg v2", 5.12) on. */
enum node_stat_item___with_swap {
	NR_SWAPCACHE___with_swap = 1,
};

/* Only from d4ccaf58a847 ("bpf: Introduce cgroup iter", 6.1) on. */
struct bpf_iter__cgroup___from_6_1 {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

/*
 * f1a7941243c1 ("mm: convert mm's rss stats into percpu_counter", 6.2) made rss_stat an array of percpu
 * counters; before, it was a struct around an array of atomics. In both, the sum may lag behind by what
 * each CPU has not added yet (64 pages each).
 */
struct percpu_counter___from_6_2 {
	__s64 count;
};

struct mm_struct___from_6_2 {
	struct percpu_counter___from_6_2 rss_stat[4];
};

struct mm_rss_stat___before_6_2 {
	atomic_long_t count[4];
};

struct mm_struct___before_6_2 {
	struct mm_rss_stat___before_6_2 rss_stat;
};

/*
 * Only with CONFIG_LRU_GEN, from ec1c86b25f4b ("mm: multi-gen LRU: groundwork", 6.1) on. Pages by generation, kind
 * and zone.
 */
#define GENERATIONS 4

struct lru_gen_folio___optional {
	unsigned long max_seq;
	long nr_pages[GENERATIONS];
};

struct lruvec___with_generations {
	struct lru_gen_folio___optional lrugen;
};

#pragma clang attribute pop

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
	struct mm_struct___before_6_2 *before = (void *)mm;
	struct mm_struct___from_6_2 *from = (void *)mm;

	if (bpf_core_field_exists(before->rss_stat.count))
		return whole_pages(BPF_CORE_READ(before, rss_stat.count[MM_FILEPAGES].counter)) +
		       whole_pages(BPF_CORE_READ(before, rss_stat.count[MM_ANONPAGES].counter)) +
		       whole_pages(BPF_CORE_READ(before, rss_stat.count[MM_SHMEMPAGES].counter));
	return whole_pages(BPF_CORE_READ(from, rss_stat[MM_FILEPAGES].count)) +
	       whole_pages(BPF_CORE_READ(from, rss_stat[MM_ANONPAGES].count)) +
	       whole_pages(BPF_CORE_READ(from, rss_stat[MM_SHMEMPAGES].count));
}

#endif
