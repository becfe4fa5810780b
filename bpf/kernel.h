/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The kernel's types as far as the probes touch them. CO-RE looks every field up in the running kernel's
 * BTF when a program is loaded, so order, size and whatever else these structs hold do not matter here, and
 * 2.3 MB of vmlinux.h are not needed. Names and types are the kernel's (7.2; what other versions call
 * differently stands in core_fixes.bpf.h).
 */
#ifndef REACTOR_KERNEL_H
#define REACTOR_KERNEL_H

#define __VMLINUX_H__ /* for bpf_tracing.h: registers are named as in BTF */

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;
typedef int pid_t;

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_RINGBUF = 27,
};

struct bpf_timer {
	__u64 opaque[2];
} __attribute__((aligned(8)));

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

typedef struct {
	long counter;
} atomic_long_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct kernfs_node {
	__u64 id;
};

enum cgroup_subsys_id {
	memory_cgrp_id = 4, /* depends on the kernel's configuration: read by bpf_core_enum_value */
	pids_cgrp_id = 11,
};

struct cgroup;

struct cgroup_subsys_state {
	struct cgroup *cgroup;
	struct cgroup_subsys_state *parent;
};

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_subsys_state *subsys[16];
};

struct css_set {
	struct cgroup_subsys_state *subsys[16];
	struct cgroup *dfl_cgrp;
};

struct page_counter {
	atomic_long_t usage;
	unsigned long max;
	struct page_counter *parent;
};

struct mem_cgroup {
	struct cgroup_subsys_state css;
	struct page_counter memory;
};

struct pids_cgroup {
	struct cgroup_subsys_state css;
	atomic64_t counter;
};

struct percpu_counter {
	__s64 count;
};

enum { /* anonymous in the kernel, and unchanged since 4.5 */
	MM_FILEPAGES,
	MM_ANONPAGES,
	MM_SWAPENTS,
	MM_SHMEMPAGES,
};

struct mm_struct {
	struct percpu_counter rss_stat[4];
};

struct task_struct {
	pid_t tgid;
	char comm[16];
	struct mm_struct *mm;
	struct css_set *cgroups;
};

struct oom_control {
	struct mem_cgroup *memcg;
	unsigned long totalpages;
	struct task_struct *chosen;
};

enum zone_stat_item {
	NR_FREE_PAGES = 0,
};

enum node_stat_item {
	NR_INACTIVE_FILE = 2,
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__cgroup {
	struct bpf_iter_meta *meta;
	struct cgroup *cgroup;
};

#pragma clang attribute pop

#endif
