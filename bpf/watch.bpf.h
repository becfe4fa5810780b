/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* The maps that every object has, and what levels.h needs of them. */
#ifndef REACTOR_WATCH_BPF_H
#define REACTOR_WATCH_BPF_H

#include "vmlinux.h"
#include <bpf/bpf_helpers.h>

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

static __always_inline void *reserve_record(__u64 bytes)
{
	return bpf_ringbuf_reserve(&events, bytes, 0);
}

static __always_inline void submit_record(void *record)
{
	bpf_ringbuf_submit(record, 0);
}

static __always_inline bool claim(__u64 *address, __u64 old, __u64 new)
{
	return __sync_val_compare_and_swap(address, old, new) == old;
}

#include "levels.h"

#endif
