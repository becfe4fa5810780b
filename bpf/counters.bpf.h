/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The iterator that returns the addresses of a cgroup's counters. By BTF alone, as memory.bpf.c. */
#ifndef REACTOR_COUNTERS_BPF_H
#define REACTOR_COUNTERS_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "core_fixes.bpf.h"
#include "records.h"

static __always_inline struct cgroup_subsys_state *css_of(struct cgroup *cgroup, __u64 subsystem)
{
	/* a known offset once the enumerator is relocated, so that the verifier follows the pointer */
	struct cgroup_subsys_state **slot =
		(void *)cgroup + bpf_core_field_offset(struct cgroup, subsys) + subsystem * sizeof(void *);

	return *slot;
}

/* read(2) on the iterator gives one record for each cgroup that it was made for. */
SEC("iter/cgroup")
int cgroup_counters(struct bpf_iter__cgroup___from_6_1 *ctx)
{
	struct cgroup *cgroup = ctx->cgroup;
	struct cgroup_subsys_state *css;
	struct counters_record record = {};

	if (!cgroup)
		return 0;
	record.cgroup = cgroup->kn->id;
	record.level = cgroup->level;
	css = css_of(cgroup, bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id));
	if (css)
		record.memory = (__u64)css + bpf_core_field_offset(struct mem_cgroup, memory);
	if (bpf_core_enum_value_exists(enum cgroup_subsys_id___optional, pids_cgrp_id___optional)) {
		css = css_of(cgroup, bpf_core_enum_value(enum cgroup_subsys_id___optional, pids_cgrp_id___optional));
		if (css)
			record.tasks = (__u64)css + bpf_core_field_offset(struct pids_cgroup___optional, counter);
	}
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}

#endif
