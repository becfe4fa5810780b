/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The maps that every object has, and what a level does when a value passes it. */
#ifndef REACTOR_WATCH_BPF_H
#define REACTOR_WATCH_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "records.h"

#define MAX_CGROUP_DEPTH 16

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} events SEC(".maps");

/* [0]: records that found the ring buffer full. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} lost SEC(".maps");

static __always_inline void count_lost(void)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&lost, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
}

static __always_inline void tell(__u32 kind, __u32 watched, __u64 id, __u64 value, __u64 fire, __u32 level)
{
	struct watch_record *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);

	if (!record) {
		count_lost();
		return;
	}
	record->kind = kind;
	record->watched = watched;
	record->at_ns = bpf_ktime_get_ns();
	record->id = id;
	record->value = value;
	record->fire = fire;
	record->level = level;
	record->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, 0);
}

/* Compare a fresh value with the watch's levels. Whichever CPU moves `next` writes the record. */
static __always_inline void look(struct counter_watch *watch, __u32 watched, __u64 value)
{
	for (__u32 i = 0; i < LEVELS_PER_WATCH; i++) {
		struct watch_level *level = &watch->levels[i];
		__u64 fire = level->fire, next = level->next;

		if (value >= next) {
			__u64 above = value - fire;

			if (__sync_val_compare_and_swap(&level->next, next,
							value + (above > level->step ? above : level->step)) == next)
				tell(RECORD_CROSSING, watched, watch->id, value, fire, i);
		} else if (next != fire && value < level->rearm) {
			__sync_val_compare_and_swap(&level->next, next, fire);
		}
	}
}

#endif
