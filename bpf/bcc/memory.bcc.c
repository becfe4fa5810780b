// SPDX-License-Identifier: MIT OR GPL-2.0-only
/*
 * Memory watches on any number of cgroups and on the node, as memory.bpf.c and node.bpf.c, for kernels
 * without BTF: kprobes, which see a charge before it is made.
 */
#include <linux/memcontrol.h>
#include <linux/mmzone.h>
#include <linux/page_counter.h>
#include <linux/ptrace.h>
#include <linux/version.h>
#include "../records.h"
#include "bcc.h"
#include "walk.h"

/* By the address of the cgroup's page counter. */
BPF_HASH(memory_watches, u64, struct counter_watch, 4096);

BPF_ARRAY(node_memory, struct counter_watch, 1);

BPF_ARRAY(node_counting, struct node_counting, 1);

/* The addresses of vm_node_stat and vm_zone_stat. */
BPF_ARRAY(node_counters, u64, 2);

static __always_inline s64 pages_of(int key, int item)
{
	u64 *address = node_counters.lookup(&key);
	s64 pages = -1;

	if (!address || !*address || peek(pages, *address + item * sizeof(atomic_long_t)))
		return -1;
	return pages > 0 ? pages : 0;
}

static __always_inline s64 node_pages(int item)
{
	return pages_of(0, item);
}

/*
 * Swap cache counts among the node's file pages, and not among those of any cgroup. b6038942480e ("mm: memcg:
 * add swapcache stat for memcg v2", 5.12) counts it; before, a machine that swaps is seen to use more than it
 * does, and the wake comes early.
 */
static __always_inline s64 swap_cache_pages(void)
{
#if defined(CONFIG_SWAP) && LINUX_VERSION_CODE >= KERNEL_VERSION(5, 12, 0)
	return node_pages(NR_SWAPCACHE);
#else
	return 0;
#endif
}

/* d42f3245c7e2 ("mm: memcg: convert vmstat slab counters to bytes", 5.9) renamed it; the node's is in pages. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(5, 9, 0)
#define SLAB_RECLAIMABLE NR_SLAB_RECLAIMABLE_B
#else
#define SLAB_RECLAIMABLE NR_SLAB_RECLAIMABLE
#endif

static __always_inline void look_at_available(struct counter_watch *watch, struct node_counting *counting)
{
	s64 inactive = node_pages(NR_INACTIVE_FILE), active = node_pages(NR_ACTIVE_FILE);
	s64 slab = node_pages(SLAB_RECLAIMABLE), other = node_pages(NR_KERNEL_MISC_RECLAIMABLE);
	s64 free = pages_of(1, NR_FREE_PAGES);

	if (inactive >= 0 && active >= 0 && slab >= 0 && other >= 0 && free >= 0)
		look(watch, WATCHED_NODE_MEMORY, unavailable(counting, free, inactive + active, slab + other));
}

static __always_inline void look_at_node(void)
{
	int key = 0;
	struct counter_watch *watch = node_memory.lookup(&key);
	struct node_counting *counting = node_counting.lookup(&key);
	s64 anonymous, file, swap, inactive;

	if (!watch || !watch->of_node)
		return;
	if (counting && counting->total) {
		look_at_available(watch, counting);
		return;
	}
	anonymous = node_pages(NR_ANON_MAPPED);
	file = node_pages(NR_FILE_PAGES);
	swap = swap_cache_pages();
	inactive = node_pages(NR_INACTIVE_FILE);
	if (anonymous >= 0 && file >= 0 && swap >= 0 && inactive >= 0)
		look(watch, WATCHED_NODE_MEMORY, working_set(anonymous, file, swap, inactive));
}

/* The charge has not been made yet: add it. If it meets a limit, usage stays as it is. */
int memory_step(struct pt_regs *ctx)
{
	struct walk *walk = this_walk();
	u64 counter, usage = 0, limit = 0, parent = 0;
	struct counter_watch *watch;

	if (!walk || !walk->at)
		return 0;
	counter = walk->at;
	peek(usage, counter + offsetof(struct page_counter, usage));
	peek(limit, counter + offsetof(struct page_counter, max));
	peek(parent, counter + offsetof(struct page_counter, parent));
	if (walk->limited && usage + walk->pages > limit)
		walk->met = true;
	walk->at = parent;
	watch = memory_watches.lookup(&counter);
	if (watch && walk->met)
		report_limit_met(watch, usage);
	else if (watch)
		look(watch, WATCHED_CGROUP_MEMORY, usage + walk->pages);
	steps.call(ctx, 0);
	return 0;
}

static __always_inline void begin(struct pt_regs *ctx, bool limited)
{
	struct walk *walk = this_walk();

	if (!walk)
		return;
	walk->at = PT_REGS_PARM1(ctx);
	walk->pages = PT_REGS_PARM2(ctx);
	walk->limited = limited;
	walk->met = false;
	steps.call(ctx, 0);
}

int memory_try_charge(struct pt_regs *ctx)
{
	look_at_node();
	begin(ctx, true);
	return 0;
}

int memory_charge(struct pt_regs *ctx)
{
	look_at_node();
	begin(ctx, false);
	return 0;
}

/* What the root's processes use is charged to no cgroup: the node is read every 10 ms, by the clock of one CPU. */
int node_sample(struct bpf_perf_event_data *ctx)
{
	look_at_node();
	return 0;
}

int memory_removed(struct pt_regs *ctx)
{
	u64 key = PT_REGS_PARM1(ctx) + offsetof(struct mem_cgroup, memory);
	struct counter_watch *watch = memory_watches.lookup(&key);
	u64 id;

	if (!watch)
		return 0;
	id = watch->id;
	if (!memory_watches.delete(&key))
		report(RECORD_REMOVED, WATCHED_CGROUP_MEMORY, id, 0, 0, 0);
	return 0;
}

/* A process reads a memory.current. */
int memory_asked(struct pt_regs *ctx)
{
	u64 css = PT_REGS_PARM1(ctx);
	struct counters_record *answer = question_about(css);

	if (answer)
		answer->memory = css + offsetof(struct mem_cgroup, memory);
	return 0;
}
