// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * The kernel's OOM killer: whose limit was met (a cgroup's own, or the node's), whom it killed, how large
 * that was. Nothing is ever decided by these records: they tell that the kernel was faster.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "core_fixes.bpf.h"
#include "watch.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* Return the victim's cgroup where memory is accounted: in v1's own hierarchy, else in the unified one. */
static __always_inline struct cgroup *cgroup_of(struct task_struct *victim)
{
	__u64 subsystem = bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	struct css_set *set = BPF_CORE_READ(victim, cgroups);
	struct cgroup *unified = BPF_CORE_READ(set, dfl_cgrp), *memory;
	struct cgroup_subsys_state *css = 0;

	bpf_core_read(&css, sizeof(css), &set->subsys[subsystem]);
	memory = BPF_CORE_READ(css, cgroup);
	return BPF_CORE_READ(memory, root) == BPF_CORE_READ(unified, root) ? unified : memory;
}

/* The one place that all OOM kills pass, with the victim chosen and still whole. */
SEC("fentry/oom_kill_process")
int BPF_PROG(oom_kill, struct oom_control *oc, const char *message)
{
	struct oom_record *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);
	struct task_struct *victim = oc->chosen;
	struct mem_cgroup *memcg = oc->memcg;
	struct mm_struct *mm = victim->mm;
	struct cgroup *cgroup;

	if (!record) {
		count_lost();
		return 0;
	}
	record->kind = RECORD_OOM_KILL;
	record->pid = victim->tgid;
	record->at_ns = bpf_ktime_get_ns();
	record->limit_cgroup = 0;
	record->limit_pages = oc->totalpages;
	record->usage_pages = 0;
	if (memcg) {
		record->limit_cgroup = memcg->css.cgroup->kn->id;
		record->limit_pages = memcg->memory.max;
		record->usage_pages = memcg->memory.usage.counter;
	}
	record->victim_pages = mm ? mm_resident_pages(mm) : 0;
	BPF_CORE_READ_STR_INTO(&record->comm, victim, comm);
	cgroup = cgroup_of(victim);
#pragma clang loop unroll(full)
	for (int i = 0; i < OOM_PATH_LEVELS; i++) {
		record->path[i].id = BPF_CORE_READ(cgroup, kn, id); /* of no cgroup: 0 */
		bpf_probe_read_kernel_str(record->path[i].name, OOM_NAME_BYTES, BPF_CORE_READ(cgroup, kn, name));
		cgroup = BPF_CORE_READ(cgroup, self.parent, cgroup);
	}
	bpf_ringbuf_submit(record, 0);
	return 0;
}
