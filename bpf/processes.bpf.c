// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Process-count watches: on cgroups by the pids controller's own counters, which every fork raises from the
 * cgroup up to the root; on the node by nr_threads, which is what kernel.threads-max and kernel.pid_max are
 * held against. Threads count, as they do in both.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "core_fixes.bpf.h"
#include "counters.bpf.h"
#include "hooks.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

extern const void nr_threads __ksym __weak;

/* By the address of the cgroup's counter. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct counter_watch);
} task_watches SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter_watch);
} node_tasks SEC(".maps");

/* Called for every fork, also for one that the limit refuses. */
static __always_inline void on_fork(struct css_set *cset, __u64 coming)
{
	__u64 subsystem = bpf_core_enum_value(enum cgroup_subsys_id___optional, pids_cgrp_id___optional);
	struct cgroup_subsys_state *css = 0;

	bpf_core_read(&css, sizeof(css), &cset->subsys[subsystem]);
	for (int i = 0; i < MAX_CGROUP_DEPTH && css; i++) {
		__u64 key = (__u64)css + bpf_core_field_offset(struct pids_cgroup___optional, counter);
		struct counter_watch *watch = bpf_map_lookup_elem(&task_watches, &key);
		__s64 tasks = 0;

		if (watch && !bpf_probe_read_kernel(&tasks, sizeof(tasks), (const void *)key) && tasks > 0)
			look(watch, WATCHED_CGROUP_TASKS, tasks + coming);
		css = BPF_CORE_READ(css, parent);
	}
}

#ifdef BY_KPROBE
SEC("kprobe/pids_can_fork")
int tasks_fork(void *registers)
{
	on_fork((void *)second_argument(registers), 1);
	return 0;
}
#else
SEC("fexit/pids_can_fork")
int BPF_PROG(tasks_fork, struct task_struct *task, struct css_set *cset)
{
	on_fork(cset, 0);
	return 0;
}
#endif

static __always_inline void forget(struct cgroup_subsys_state *css)
{
	__u64 key = (__u64)css + bpf_core_field_offset(struct pids_cgroup___optional, counter);
	struct counter_watch *watch = bpf_map_lookup_elem(&task_watches, &key);
	__u64 id;

	if (!watch)
		return;
	id = watch->id;
	if (!bpf_map_delete_elem(&task_watches, &key))
		report(RECORD_REMOVED, WATCHED_CGROUP_TASKS, id, 0, 0, 0);
}

ON_ENTRY(pids_css_free, tasks_removed, forget)

SEC("raw_tp/sched_process_fork")
int node_fork(void *ctx)
{
	__u32 key = 0;
	struct counter_watch *watch = bpf_map_lookup_elem(&node_tasks, &key);
	__s32 threads = 0;

	if (!watch || !watch->of_node || !&nr_threads)
		return 0;
	if (!bpf_probe_read_kernel(&threads, sizeof(threads), &nr_threads) && threads > 0)
		look(watch, WATCHED_NODE_TASKS, threads);
	return 0;
}

struct start_result {
	__s64 threads; /* -1: the counter can't be read */
};

SEC("syscall")
int tasks_start(struct start_result *result)
{
	__s32 threads = 0;

	result->threads = -1;
	if (&nr_threads && !bpf_probe_read_kernel(&threads, sizeof(threads), &nr_threads) && threads > 0)
		result->threads = threads;
	return 0;
}
