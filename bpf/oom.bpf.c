// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The kernel's OOM killer: the limit that was met (a cgroup's, or the node's), the victim and its size. These
 * records decide nothing: they report that the kernel was faster.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "core_fixes.bpf.h"
#include "hooks.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

static __always_inline void report_kill(struct oom_control *oc)
{
	struct oom_record *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	struct task_struct *victim = FIELD(oc, chosen);
	struct mem_cgroup *memcg = FIELD(oc, memcg);
	struct mm_struct *mm = FIELD(victim, mm);
	struct css_set *cgroups;
	struct kernfs_node *named;
	struct cgroup *cgroup;

	if (!record) {
		count_lost();
		return;
	}
	record->kind = RECORD_OOM_KILL;
	record->pid = FIELD(victim, tgid);
	record->at_ns = bpf_ktime_get_ns();
	record->limit_cgroup = 0;
	record->limit_pages = FIELD(oc, totalpages);
	record->usage_pages = 0;
	if (memcg) {
		cgroup = FIELD(memcg, css.cgroup);
		named = FIELD(cgroup, kn);
		record->limit_cgroup = FIELD(named, id);
		record->limit_pages = FIELD(memcg, memory.max);
		record->usage_pages = FIELD(memcg, memory.usage.counter);
	}
	record->victim_pages = mm ? mm_resident_pages(mm) : 0;
	BPF_CORE_READ_STR_INTO(&record->comm, victim, comm);
	cgroups = FIELD(victim, cgroups);
	cgroup = FIELD(cgroups, dfl_cgrp);
#pragma clang loop unroll(full)
	for (int i = 0; i < OOM_PATH_LEVELS; i++) {
		record->path[i].id = BPF_CORE_READ(cgroup, kn, id); /* of no cgroup: 0 */
		bpf_probe_read_kernel_str(record->path[i].name, OOM_NAME_BYTES, BPF_CORE_READ(cgroup, kn, name));
		cgroup = BPF_CORE_READ(cgroup, self.parent, cgroup);
	}
	bpf_ringbuf_submit(record, 0);
}

/* The one place that all OOM kills pass, with the victim chosen and still whole. */
ON_ENTRY(oom_kill_process, oom_kill, report_kill)
