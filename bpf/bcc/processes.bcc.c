// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* Process-count watches, as processes.bpf.c, for kernels without BTF. */
#include <linux/cgroup.h>
#include <linux/ptrace.h>
#include "../records.h"
#include "bcc.h"
#include "walk.h"

/* The first fields of struct pids_cgroup, which is private to kernel/cgroup/pids.c. */
struct pids_cgroup_head {
	struct cgroup_subsys_state css;
	atomic64_t counter;
};

/* By the address of the cgroup's counter. */
BPF_HASH(task_watches, u64, struct counter_watch, 4096);

BPF_ARRAY(node_tasks, struct counter_watch, 1);

/* The address of nr_threads. */
BPF_ARRAY(node_counters, u64, 1);

static __always_inline void look_at_node(void)
{
	int key = 0;
	struct counter_watch *watch = node_tasks.lookup(&key);
	u64 *address = node_counters.lookup(&key);
	int threads = 0;

	if (!watch || !watch->of_node || !address || !*address)
		return;
	if (!peek(threads, *address) && threads > 0)
		look(watch, WATCHED_NODE_TASKS, threads + 1);
}

/* The task that is being created is not counted yet. */
int tasks_step(struct pt_regs *ctx)
{
	struct walk *walk = this_walk();
	struct counter_watch *watch;
	u64 css, key, parent = 0;
	s64 tasks = 0;

	if (!walk || !walk->at)
		return 0;
	css = walk->at;
	key = css + offsetof(struct pids_cgroup_head, counter);
	peek(parent, css + offsetof(struct cgroup_subsys_state, parent));
	walk->at = parent;
	watch = task_watches.lookup(&key);
	if (watch && !peek(tasks, key) && tasks >= 0)
		look(watch, WATCHED_CGROUP_TASKS, tasks + 1);
	steps.call(ctx, 0);
	return 0;
}

/* pids_can_fork(task, css_set) */
int tasks_fork(struct pt_regs *ctx)
{
	struct walk *walk = this_walk();
	u64 css = 0;

	look_at_node();
	if (!walk)
		return 0;
	peek(css, PT_REGS_PARM2(ctx) + offsetof(struct css_set, subsys) + pids_cgrp_id * sizeof(css));
	walk->at = css;
	steps.call(ctx, 0);
	return 0;
}

int tasks_removed(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx) + offsetof(struct pids_cgroup_head, counter);
	struct counter_watch *watch = task_watches.lookup(&key);
	u64 id;

	if (!watch)
		return 0;
	id = watch->id;
	if (!task_watches.delete(&key))
		report(RECORD_REMOVED, WATCHED_CGROUP_TASKS, id, 0, 0, 0);
	return 0;
}

/* A process reads a pids.current. */
int tasks_asked(struct pt_regs *ctx)
{
	u64 css = PT_REGS_PARM1(ctx);
	struct counters_record *answer = question_about(css);

	if (answer)
		answer->tasks = css + offsetof(struct pids_cgroup_head, counter);
	return 0;
}
