/* SPDX-License-Identifier: Apache-2.0
 *
 * What the demo and the benchmarks put into a virtual node, and what watches it: with its own clock readings,
 * so that no figure leans on the daemon's word.
 *
 *   allocator allocate RECORD USAGE LEVEL PREFILL TOTAL RATE   touch memory: PREFILL bytes at once, then up to
 *                                         TOTAL bytes at RATE bytes a second (0: as fast as it goes), then hold it
 *   allocator allocate ... DEATHS PAUSE_MS     the same with a pause after the prefill, and word KILLED of the
 *                                         record DEATHS cleared by the kernel as soon as it is killed
 *   allocator observe RECORD USAGE BACK TIMEOUT_MS PID [PID]   wait for the PIDs' ends and for usage <= BACK
 *   allocator await RECORD USAGE BACK TIMEOUT_MS   wait for the first that clears KILLED, and for usage <= BACK
 *   allocator canary                      sleep at real-time priority: dies when its cgroup is killed, having
 *                                         nothing to tear down
 *   allocator touch RECORD BYTES ROUNDS   whenever GO is set, touch BYTES of fresh memory and give them back,
 *                                         ROUNDS times; then put the CPU time of the fastest into LAST_NS and clear GO
 *   allocator fill RECORD BYTES PAGES     once GO is set, touch BYTES as fast as it goes, in pages of 4 KiB (PAGES
 *                                         "small") or in huge ones where the kernel has them ("huge"), then hold them;
 *                                         LAST_NS is the end of that
 *   allocator fork RATE SECONDS           start RATE processes a second, each of which exits at once
 *   allocator spin                        keep one CPU busy at normal priority
 *   allocator idle                        sleep
 *   allocator lead COMMAND [ARGUMENT ...] become the command, which then ends when its starter does
 *
 * USAGE is memory.usage_in_bytes or memory.current of the node, RECORD a file of 8 zeroed 64-bit words which is
 * mapped shared, so that what was last written outlives a SIGKILL; allocate begins when GO is set in it. All
 * instants are CLOCK_MONOTONIC nanoseconds.
 * Exit status 0, or 1 with a line on stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
/* Reading the usage costs about as much as a page fault, so it is read once in a chunk; but page by page shortly
 * before the level, so that being preempted hardly ever falls between the clock and the crossing. */
#define CHUNK (8 * PAGE)
#define CLOSE_TO_LEVEL (2 << 20)
#define SECOND_NS 1000000000LL

enum record { STARTED_NS, BEFORE_CROSSING_NS, CROSSED_USAGE, LAST_NS, TOUCHED_BYTES, MAX_USAGE, GO, WORDS = 8 };
enum observed { READY_NS = 0, ENDED_NS = 1, DEAD_NS = 2, BACK_NS = 3, BACK_USAGE = 4, KILLED = 7 };

static void fail(const char *what)
{
	fprintf(stderr, "allocator: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static void sleep_until(int64_t at_ns)
{
	struct timespec at = { .tv_sec = at_ns / SECOND_NS, .tv_nsec = at_ns % SECOND_NS };

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

static volatile int64_t *open_record(const char *path)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	void *record = MAP_FAILED;

	if (fd >= 0)
		record = mmap(NULL, WORDS * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (record == MAP_FAILED)
		fail(path);
	close(fd);
	return record;
}

static int open_usage(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		fail(path);
	return fd;
}

static int64_t usage_bytes(int fd)
{
	char text[32] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
		return -1;
	return strtoll(text, NULL, 10);
}

static void be_realtime(int priority)
{
	struct sched_param parameter = { .sched_priority = priority };

	/* Refused without CAP_SYS_NICE or real-time runtime: then the clock readings come a little later. */
	sched_setscheduler(0, SCHED_FIFO, &parameter);
}

/* Touch `bytes` more, from `at` on, a page at a time as a program does. */
static void touch(volatile char *memory, int64_t at, int64_t bytes)
{
	for (int64_t offset = at; offset < at + bytes; offset += PAGE)
		memory[offset] = 1;
}

static int *killed_word(volatile int64_t *deaths)
{
	return (int *)&deaths[KILLED];
}

/* A thread of its own at real-time priority, so that the moment of the kill is told even where the allocator waits
 * for a CPU to die on. */
static void *wait_for_death(void *word)
{
	syscall(SYS_set_tid_address, word);
	be_realtime(40);
	for (;;)
		pause();
	return NULL;
}

/* The kernel clears the word at a thread's exit and wakes who waits for it (CLONE_CHILD_CLEARTID), before the memory
 * is torn down: but not for the last thread that uses the memory. So both threads name the word, and the first tells. */
static void tell_death(const char *path)
{
	int *word = killed_word(open_record(path));
	pthread_t thread;

	if (pthread_create(&thread, NULL, wait_for_death, word))
		fail("pthread_create");
	syscall(SYS_set_tid_address, word);
}

static _Noreturn void allocate(int count, char **arguments)
{
	volatile int64_t *record = open_record(arguments[0]);
	int usage_fd = open_usage(arguments[1]);
	int64_t level = atoll(arguments[2]), prefill = atoll(arguments[3]);
	int64_t total = atoll(arguments[4]), rate = atoll(arguments[5]);
	int64_t touched, started_ns, before_ns, usage = 0, step = CHUNK, pause_ms = count > 6 ? atoll(arguments[7]) : 0;
	char *memory = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	madvise(memory, total, MADV_NOHUGEPAGE); /* 4 KiB a fault, as most programs grow */
	if (count > 6)
		tell_death(arguments[6]);
	while (!record[GO])
		sleep_until(now_ns() + 200000);
	touch(memory, 0, prefill);
	sleep_until(now_ns() + pause_ms * 1000000);
	started_ns = record[STARTED_NS] = now_ns();
	for (touched = prefill; touched < total; touched += step) {
		step = usage < level && usage + CLOSE_TO_LEVEL >= level ? PAGE : CHUNK;
		if (step > total - touched)
			step = total - touched;
		if (rate)
			sleep_until(started_ns + (touched - prefill) * (double)SECOND_NS / rate);
		before_ns = now_ns();
		/* Until the crossing has been seen, the instant before the present step: if the daemon is quick
		 * enough to kill us inside it, that stands, and errs to the daemon's disadvantage. */
		if (!record[CROSSED_USAGE])
			record[BEFORE_CROSSING_NS] = before_ns;
		touch(memory, touched, step);
		usage = usage_bytes(usage_fd);
		if (usage >= level && !record[CROSSED_USAGE])
			record[CROSSED_USAGE] = usage;
		if (usage > record[MAX_USAGE])
			record[MAX_USAGE] = usage;
		record[TOUCHED_BYTES] = touched + step;
		record[LAST_NS] = now_ns();
	}
	for (;;)
		pause();
}

static int64_t cpu_time_ns(void)
{
	struct timespec used;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	return used.tv_sec * SECOND_NS + used.tv_nsec;
}

static _Noreturn void touch_on_request(char **arguments)
{
	volatile int64_t *record = open_record(arguments[0]);
	int64_t bytes = atoll(arguments[1]), rounds = atoll(arguments[2]), began_ns, took_ns, fastest_ns;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	madvise(memory, bytes, MADV_NOHUGEPAGE);
	record[STARTED_NS] = now_ns();
	for (;;) {
		while (!record[GO])
			sleep_until(now_ns() + 1000000);
		fastest_ns = INT64_MAX;
		for (int64_t round = 0; round < rounds; round++) {
			began_ns = cpu_time_ns();
			touch(memory, 0, bytes);
			took_ns = cpu_time_ns() - began_ns;
			madvise(memory, bytes, MADV_DONTNEED);
			if (took_ns < fastest_ns)
				fastest_ns = took_ns;
		}
		record[LAST_NS] = fastest_ns;
		record[GO] = 0;
	}
}

static _Noreturn void fill(char **arguments)
{
	volatile int64_t *record = open_record(arguments[0]);
	int64_t bytes = atoll(arguments[1]), huge = 2 << 20;
	/* Aligned by hand: a huge page has to lie whole in the mapping. */
	char *memory = mmap(NULL, bytes + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (memory == MAP_FAILED)
		fail("mmap");
	memory += -(intptr_t)memory & (huge - 1);
	/* A kernel without huge pages refuses either; it then has small ones only. */
	madvise(memory, bytes, strcmp(arguments[2], "huge") ? MADV_NOHUGEPAGE : MADV_HUGEPAGE);
	while (!record[GO])
		sleep_until(now_ns() + 200000);
	record[STARTED_NS] = now_ns();
	touch(memory, 0, bytes);
	record[LAST_NS] = now_ns();
	for (;;)
		pause();
}

/* Wait until usage is at `back` or below, or the deadline; record when that was, and the usage then. */
static void await_back(volatile int64_t *record, int usage_fd, int64_t back, int64_t deadline_ns)
{
	int64_t usage;

	while ((usage = usage_bytes(usage_fd)) > back && now_ns() < deadline_ns)
		sleep_until(now_ns() + 200000);
	if (usage <= back)
		record[BACK_NS] = now_ns();
	record[BACK_USAGE] = usage;
}

static int observe(int count, char **arguments)
{
	volatile int64_t *record = open_record(arguments[0]);
	int usage_fd = open_usage(arguments[1]), alive = count - 4, ready;
	int64_t back = atoll(arguments[2]), deadline_ns = now_ns() + atoll(arguments[3]) * 1000000LL;
	struct pollfd ends[2];

	if (alive < 1 || alive > 2) {
		fprintf(stderr, "allocator: observe: one or two PIDs\n");
		return 1;
	}
	for (int i = 0; i < alive; i++) {
		ends[i] = (struct pollfd){ .events = POLLIN };
		ends[i].fd = syscall(SYS_pidfd_open, atoi(arguments[4 + i]), 0);
		if (ends[i].fd < 0)
			fail("pidfd_open");
	}
	be_realtime(60); /* above the daemon; asleep except for the readings */
	record[READY_NS] = now_ns();
	for (int left = alive; left;) {
		ready = poll(ends, alive, (deadline_ns - now_ns()) / 1000000);
		if (ready <= 0)
			return 0; /* what is zero in the record did not happen */
		for (int i = 0; i < alive; i++)
			if (ends[i].revents) {
				record[ENDED_NS + i] = now_ns();
				ends[i].fd = -1;
				ends[i].revents = 0;
				left--;
			}
	}
	await_back(record, usage_fd, back, deadline_ns);
	return 0;
}

static int await_death(char **arguments)
{
	volatile int64_t *record = open_record(arguments[0]);
	int usage_fd = open_usage(arguments[1]), *word = killed_word(record);
	int64_t back = atoll(arguments[2]), deadline_ns = now_ns() + atoll(arguments[3]) * 1000000LL;
	struct timespec deadline = { .tv_sec = deadline_ns / SECOND_NS, .tv_nsec = deadline_ns % SECOND_NS };

	*word = 1;
	be_realtime(60);
	record[READY_NS] = now_ns();
	while (__atomic_load_n(word, __ATOMIC_ACQUIRE)) /* not FUTEX_PRIVATE: the word is another process's */
		if (syscall(SYS_futex, word, FUTEX_WAIT_BITSET, 1, &deadline, NULL, FUTEX_BITSET_MATCH_ANY) &&
		    errno == ETIMEDOUT)
			return 0;
	record[DEAD_NS] = now_ns();
	await_back(record, usage_fd, back, deadline_ns);
	return 0;
}

static int fork_storm(char **arguments)
{
	int64_t rate = atoll(arguments[0]), started_ns, end_ns;
	double seconds = atof(arguments[1]);
	volatile long forks = 0; /* lives across vfork */

	if (rate <= 0)
		return 1;
	started_ns = now_ns();
	end_ns = started_ns + seconds * SECOND_NS;
	while (now_ns() < end_ns) {
		/* vfork: a new process all the same, without copying page tables, so that one CPU reaches the rate */
		pid_t child = vfork();

		if (child == 0)
			_exit(0);
		if (child > 0) {
			waitpid(child, NULL, 0);
			forks++;
		}
		/* Bursts of 1 ms: a sleep between two forks would cost more than the fork. */
		if (forks % (rate / 1000 + 1) == 0)
			sleep_until(started_ns + forks * (double)SECOND_NS / rate);
	}
	printf("%ld %lld\n", forks, (long long)(now_ns() - started_ns));
	return 0;
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing of this outlives who started it */
	if (!strcmp(mode, "allocate") && (count == 8 || count == 10))
		allocate(count - 2, arguments + 2);
	if (!strcmp(mode, "observe") && count > 6)
		return observe(count - 2, arguments + 2);
	if (!strcmp(mode, "await") && count == 6)
		return await_death(arguments + 2);
	if (!strcmp(mode, "touch") && count == 5)
		touch_on_request(arguments + 2);
	if (!strcmp(mode, "fill") && count == 5)
		fill(arguments + 2);
	if (!strcmp(mode, "fork") && count == 4)
		return fork_storm(arguments + 2);
	if (!strcmp(mode, "canary")) {
		be_realtime(40);
		for (;;)
			pause();
	}
	if (!strcmp(mode, "idle"))
		for (;;)
			pause();
	if (!strcmp(mode, "spin"))
		for (;;)
			__asm__ volatile("");
	if (!strcmp(mode, "lead") && count > 2) {
		execvp(arguments[2], arguments + 2);
		fail(arguments[2]);
	}
	fprintf(stderr, "allocator: one of allocate, observe, await, touch, fill, canary, fork, spin, idle, lead "
			"with their arguments\n");
	return 1;
}
