// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Warrants: the kill at the crossing, made by the kernel in the very charge that crosses a level.
 *
 * User space decides in advance who goes at a crossing that is near, and under which conditions that decision
 * holds; the programs here check the conditions and decide nothing. There is one warrant at a time. Its claim word
 * is moved by compare-and-exchange, by the program that serves it and by those that user space calls: the one that
 * moves it acts, and the other does not.
 *
 * Every other pod has a bound. It is looked at in every charge of the pod while there is a draft or a warrant, so
 * that a pod that outgrows its bound voids the warrant before anything else can happen. No counter is read but
 * those which the charge itself raises.
 *
 * While there is no warrant a charge costs the call and the read of one word.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "counters.bpf.h"
#include "watch.bpf.h"
#include "node.bpf.h"
#include "page_cache.bpf.h"
#include "inactive_file.bpf.h"

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define SIGKILL 9

/* By the address of a pod's page counter: its place in `warrant_bounds`. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, WARRANT_PLACES);
	__type(key, __u64);
	__type(value, __u32);
} warrant_places SEC(".maps");

/* The pages that each pod may have. User space writes them through a mapping. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, WARRANT_PLACES);
	__type(key, __u32);
	__type(value, __u64);
} warrant_bounds SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct warrant);
} warrants SEC(".maps");

static __always_inline struct warrant *only_warrant(void)
{
	__u32 key = 0;

	return bpf_map_lookup_elem(&warrants, &key);
}

static __always_inline void report_warrant(__u64 claimed, __u32 outcome)
{
	struct warrant_record *record = reserve_record(sizeof(struct warrant_record));

	if (!record) {
		count_lost();
		return;
	}
	record->kind = RECORD_WARRANT;
	record->outcome = outcome;
	record->at_ns = bpf_ktime_get_ns();
	record->generation = claimed >> CLAIM_BITS;
	submit_record(record);
}

/* Take the claim of a draft or a live warrant, so that nobody serves it. */
static __always_inline void revoke(struct warrant *warrant, __u64 claimed, __u32 outcome)
{
	if (!claim(&warrant->claim, claimed, 0))
		return;
	warrant->outcome = outcome;
	if ((claimed & CLAIM_STATES) == CLAIM_LIVE)
		report_warrant(claimed, outcome);
}

/* Return whether the task that charges belongs to the victim, and to no cgroup in it that is left alone. */
static __always_inline bool is_victims(struct warrant *warrant)
{
	if (bpf_get_current_ancestor_cgroup_id(warrant->victim_level) != warrant->victim)
		return false;
	for (int i = 0; i < WARRANT_SPARED; i++)
		if (warrant->spared[i] &&
		    bpf_get_current_ancestor_cgroup_id(warrant->spared_levels[i]) == warrant->spared[i])
			return false;
	return true;
}

/*
 * Record the crossing, and return why the warrant is void, WARRANT_OPEN if it is to be served.
 * `victim_pages` are -1 where the charge is not the victim's: of a socket, of swap, on another's behalf.
 *
 * Inactive page cache counts as available: a cgroup's crossing comes later by as much, and is not looked for again
 * before that is charged.
 */
static __always_inline __u32 objection(struct warrant *warrant, __u64 claimed, __u64 value, __s64 victim_pages)
{
	__u64 now = bpf_ktime_get_ns();
	__s64 cache, inactive = 0;

	if (warrant->watched_counter) {
		inactive = inactive_file_below(warrant->watched_counter);
		if (inactive < 0)
			return WARRANT_CACHE_GREW;
		if (value < warrant->level + inactive) {
			if (*(volatile __u64 *)&warrant->claim == claimed)
				warrant->fire = warrant->level + inactive;
			return WARRANT_OTHERS;
		}
	}
	if (*(volatile __u64 *)&warrant->claim == claimed && claim(&warrant->crossed_ns, 0, now)) {
		warrant->value = value;
		warrant->inactive = inactive;
	}
	if (now > warrant->expires_ns)
		return WARRANT_EXPIRED;
	if (victim_pages < 0 || !is_victims(warrant))
		return WARRANT_OTHERS;
	if ((__u64)victim_pages < warrant->victim_least)
		return WARRANT_SHRANK;
	cache = page_cache_pages();
	if (cache < 0 || (__u64)cache > warrant->cache_most)
		return WARRANT_CACHE_GREW;
	if (warrant->active_most && (__u64)active_cache_pages() > warrant->active_most)
		return WARRANT_OUTSIDE_GREW;
	return WARRANT_OPEN;
}

/* The one place where the kernel kills. */
static __always_inline void serve(struct warrant *warrant, __u64 claimed)
{
	if (!claim(&warrant->claim, claimed, claimed | CLAIM_SERVED))
		return;
	warrant->pid = bpf_get_current_pid_tgid() >> 32;
	bpf_get_current_comm(warrant->comm, sizeof(warrant->comm));
	warrant->error = bpf_send_signal(SIGKILL);
	warrant->signalled_ns = bpf_ktime_get_ns();
	warrant->outcome = warrant->error ? WARRANT_REFUSED : WARRANT_SERVED;
	report_warrant(claimed, warrant->outcome);
}

static __always_inline void on_charge(struct page_counter *counter)
{
	struct warrant *warrant = only_warrant();
	__u64 claimed, value = 0;
	__s64 victim_pages = -1;
	bool is_pods = false, is_outside = false;
	__u32 why;

	if (!warrant)
		return;
	claimed = *(volatile __u64 *)&warrant->claim;
	if (!claimed || (claimed & CLAIM_STATES) == CLAIM_SERVED)
		return;
	for (int i = 0; i < MAX_CGROUP_DEPTH && counter && counter->parent; i++) {
		__u64 key = (__u64)counter, pages = counter->usage.counter, *most;
		__u32 *place;

		is_outside |= key == warrant->outside_counter;
		if (key == warrant->watched_counter) { /* what lies above it is no pod */
			value = pages;
			counter = NULL;
			break;
		}
		counter = counter->parent;
		if (key == warrant->victim_counter) { /* it has no bound */
			victim_pages = pages;
			is_pods = true;
			continue;
		}
		place = bpf_map_lookup_elem(&warrant_places, &key);
		if (!place)
			continue;
		is_pods = true;
		most = bpf_map_lookup_elem(&warrant_bounds, place);
		if (most && pages > *(volatile __u64 *)most) {
			revoke(warrant, claimed, WARRANT_OTHER_GREW);
			return;
		}
	}
	/* A cgroup so deep that its pod was not reached: who knows how much that has grown. */
	if (counter && counter->parent) {
		revoke(warrant, claimed, WARRANT_OTHER_GREW);
		return;
	}
	if (is_outside && !is_pods) {
		revoke(warrant, claimed, WARRANT_OUTSIDE_GREW);
		return;
	}
	if ((claimed & CLAIM_STATES) != CLAIM_LIVE)
		return;
	if (!warrant->watched_counter) {
		__s64 used = working_set_pages();

		value = used < 0 ? 0 : used;
	}
	if (value < warrant->fire)
		return;
	why = objection(warrant, claimed, value, victim_pages);
	if (why == WARRANT_OPEN)
		serve(warrant, claimed);
	else if (why != WARRANT_OTHERS)
		revoke(warrant, claimed, why);
}

SEC("fexit/page_counter_try_charge")
int BPF_PROG(warrant_try_charge, struct page_counter *counter, unsigned long nr_pages, struct page_counter **fail,
	     bool charged)
{
	if (charged)
		on_charge(counter);
	return 0;
}

SEC("fexit/page_counter_charge")
int BPF_PROG(warrant_charge, struct page_counter *counter, unsigned long nr_pages)
{
	on_charge(counter);
	return 0;
}

/* A cgroup that comes may be a pod that would go before the victim. */
static __always_inline void on_newcomer(void)
{
	struct warrant *warrant = only_warrant();
	__u64 claimed;

	if (!warrant)
		return;
	__sync_fetch_and_add(&warrant->arrivals, 1);
	claimed = *(volatile __u64 *)&warrant->claim;
	if (claimed && (claimed & CLAIM_STATES) != CLAIM_SERVED)
		revoke(warrant, claimed, WARRANT_NEW_CGROUP);
}

SEC("fentry/mem_cgroup_css_online")
int BPF_PROG(warrant_newcomer, struct cgroup_subsys_state *css)
{
	on_newcomer();
	return 0;
}

/* Once more, when the directory is there to be listed: one that user space found missing has come since. */
SEC("fexit/cgroup_mkdir")
int BPF_PROG(warrant_listed, struct kernfs_node *parent, const char *name, umode_t mode, int error)
{
	if (!error)
		on_newcomer();
	return 0;
}

/* The counter's memory is soon another's: its bound goes, and the warrant that names it. */
SEC("fentry/mem_cgroup_css_offline")
int BPF_PROG(warrant_removed, struct cgroup_subsys_state *css)
{
	__u64 key = (__u64)css + bpf_core_field_offset(struct mem_cgroup, memory);
	struct warrant *warrant = only_warrant();
	bool was_bound = !bpf_map_delete_elem(&warrant_places, &key);
	__u64 claimed;

	if (!warrant)
		return 0;
	claimed = *(volatile __u64 *)&warrant->claim;
	if (!claimed || (claimed & CLAIM_STATES) == CLAIM_SERVED)
		return 0;
	if (warrant->victim_counter == key || warrant->watched_counter == key || warrant->outside_counter == key)
		revoke(warrant, claimed, WARRANT_REMOVED);
	else if (was_bound && warrant->outside_counter) /* what it leaves belongs to no pod */
		revoke(warrant, claimed, WARRANT_OUTSIDE_GREW);
	return 0;
}

/* --- what user space calls: its side of the claim --- */

struct warrant_start {
	__s64 working_set_pages; /* -1: the kernel's counters can't be read */
	__s64 cache_pages;
	__s64 active_cache_pages;
	__s64 files_on_their_way;
};

SEC("syscall")
int warrant_counters(struct warrant_start *result)
{
	result->working_set_pages = working_set_pages();
	result->cache_pages = page_cache_pages();
	result->active_cache_pages = active_cache_pages();
	result->files_on_their_way = files_on_their_way();
	return 0;
}

/* Begin to heed bounds, for a warrant whose fields user space has written. `result` 1: nothing else stood there. */
SEC("syscall")
int warrant_draft(struct warrant_order *order)
{
	struct warrant *warrant = only_warrant();

	if (warrant)
		warrant->fire = warrant->level; /* of a cgroup: until the first charge tells how much is inactive */
	order->result = warrant && claim(&warrant->claim, 0, order->generation << CLAIM_BITS | CLAIM_DRAFT);
	return 0;
}

/* Have the draft served from now on. `result` 1: no bound was passed meanwhile, and no cgroup was made. */
SEC("syscall")
int warrant_arm(struct warrant_order *order)
{
	struct warrant *warrant = only_warrant();
	__u64 draft = order->generation << CLAIM_BITS | CLAIM_DRAFT;
	__u64 live = order->generation << CLAIM_BITS | CLAIM_LIVE;
	__u64 arrivals = order->arrivals;
	bool is_armed = warrant && claim(&warrant->claim, draft, live);

	/* After the claim: a cgroup that is made from here on finds the warrant and voids it. */
	if (is_armed && *(volatile __u64 *)&warrant->arrivals != arrivals) {
		revoke(warrant, live, WARRANT_NEW_CGROUP);
		is_armed = false;
	}
	order->result = is_armed;
	return 0;
}

/* Take the claim back, and return what stood there, 0 for nothing. */
static __always_inline __u64 take_claim(void)
{
	struct warrant *warrant = only_warrant();

	/* Twice at most: only a program that serves or voids it comes between, and either is the last to do so. */
	for (int i = 0; warrant && i < 3; i++) {
		__u64 claimed = *(volatile __u64 *)&warrant->claim;

		if (!claimed || claim(&warrant->claim, claimed, 0))
			return claimed;
	}
	return 0;
}

/* `result` is what stood there; a warrant that was served is for user space to follow. */
SEC("syscall")
int warrant_withdraw(struct warrant_order *order)
{
	__u64 claimed = take_claim();

	order->result = claimed;
	return 0;
}
