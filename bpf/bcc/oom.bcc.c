// SPDX-License-Identifier: MIT OR GPL-2.0-only
/* The kernel's OOM killer, as oom.bpf.c, for kernels without BTF. */
#include <linux/memcontrol.h>
#include <linux/mm_types.h>
#include <linux/oom.h>
#include <linux/ptrace.h>
#include <linux/sched.h>
#include "../records.h"
#include "bcc.h"

/*
 * f1a7941243c1 (6.2) made rss_stat an array of percpu counters; before, it was a struct around an array of
 * atomics. Its size shows which one the headers have.
 */
#define RSS_STAT_BYTES sizeof(((struct mm_struct *)0)->rss_stat)
#define RSS_STAT_STRIDE (RSS_STAT_BYTES / NR_MM_COUNTERS)
#define RSS_STAT_COUNT \
	(RSS_STAT_STRIDE == sizeof(atomic_long_t) ? 0 : offsetof(struct percpu_counter, count))

static __always_inline u64 resident_pages(u64 mm, int kind)
{
	s64 pages = 0;

	peek(pages, mm + offsetof(struct mm_struct, rss_stat) + kind * RSS_STAT_STRIDE + RSS_STAT_COUNT);
	return pages > 0 ? pages : 0;
}

/* Return the cgroup in which the victim's memory is accounted: in v1's own hierarchy, else the unified one. */
static __always_inline u64 cgroup_of(u64 victim)
{
	u64 set = 0, unified = 0, memory = 0, css = 0, unified_root = 0, memory_root = 0;

	peek(set, victim + offsetof(struct task_struct, cgroups));
	peek(unified, set + offsetof(struct css_set, dfl_cgrp));
	peek(css, set + offsetof(struct css_set, subsys) + memory_cgrp_id * sizeof(css));
	peek(memory, css + offsetof(struct cgroup_subsys_state, cgroup));
	peek(unified_root, unified + offsetof(struct cgroup, root));
	peek(memory_root, memory + offsetof(struct cgroup, root));
	return unified_root == memory_root ? unified : memory;
}

static __always_inline u64 kernfs_node_of(u64 cgroup)
{
	u64 kn = 0;

	if (cgroup)
		peek(kn, cgroup + offsetof(struct cgroup, kn));
	return kn;
}

static __always_inline u64 parent_of(u64 cgroup)
{
	u64 css = 0, parent = 0;

	peek(css, cgroup + offsetof(struct cgroup, self.parent));
	if (css)
		peek(parent, css + offsetof(struct cgroup_subsys_state, cgroup));
	return parent;
}

static __always_inline void fill_limit(struct oom_record *record, u64 memcg)
{
	u64 cgroup = 0;

	peek(cgroup, memcg + offsetof(struct cgroup_subsys_state, cgroup));
	peek(record->limit_cgroup, kernfs_node_of(cgroup) + offsetof(struct kernfs_node, id));
	peek(record->limit_pages, memcg + offsetof(struct mem_cgroup, memory.max));
	peek(record->usage_pages, memcg + offsetof(struct mem_cgroup, memory.usage));
}

static __always_inline void fill_victim(struct oom_record *record, u64 victim)
{
	u64 mm = 0;
	int tgid = 0;

	peek(tgid, victim + offsetof(struct task_struct, tgid));
	peek(mm, victim + offsetof(struct task_struct, mm));
	record->pid = tgid;
	record->victim_pages = 0;
	if (mm)
		record->victim_pages = resident_pages(mm, MM_FILEPAGES) + resident_pages(mm, MM_ANONPAGES) +
				       resident_pages(mm, MM_SHMEMPAGES);
	peek(record->comm, victim + offsetof(struct task_struct, comm));
}

/* oom_kill_process(control, message): the victim is chosen, and still whole. */
int oom_kill(struct pt_regs *ctx)
{
	struct oom_record *record = reserve_record(sizeof(struct oom_record));
	u64 control = PT_REGS_PARM1(ctx), victim = 0, memcg = 0, cgroup;

	if (!record) {
		count_lost();
		return 0;
	}
	peek(victim, control + offsetof(struct oom_control, chosen));
	peek(memcg, control + offsetof(struct oom_control, memcg));
	record->kind = RECORD_OOM_KILL;
	record->at_ns = bpf_ktime_get_ns();
	record->limit_cgroup = 0;
	record->usage_pages = 0;
	peek(record->limit_pages, control + offsetof(struct oom_control, totalpages));
	if (memcg)
		fill_limit(record, memcg);
	fill_victim(record, victim);
	cgroup = cgroup_of(victim);
#pragma clang loop unroll(full)
	for (int i = 0; i < OOM_PATH_LEVELS; i++) {
		u64 kn = kernfs_node_of(cgroup), name = 0;

		record->path[i].id = 0;
		record->path[i].name[0] = 0;
		if (kn) {
			peek(record->path[i].id, kn + offsetof(struct kernfs_node, id));
			peek(name, kn + offsetof(struct kernfs_node, name));
			bpf_probe_read_kernel_str(record->path[i].name, OOM_NAME_BYTES, (const void *)name);
			cgroup = parent_of(cgroup);
		}
	}
	submit_record(record);
	return 0;
}
