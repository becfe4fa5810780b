/* SPDX-License-Identifier: Apache-2.0
 *
 * What runs in the node on a course under pressure, with its own clock readings.
 *
 *   pressed grow RECORD USAGE LEVEL PREFILL TOTAL RATE THREADS   take PREFILL bytes at once, then up to TOTAL bytes
 *                                   at RATE bytes a second, while so many threads write to pages of what is there, at
 *                                   random; CONDITION is before the page that takes USAGE to LEVEL
 *   pressed hold RECORD BYTES       take BYTES, and write to each page of them once a second
 *   pressed probe RECORD ANSWERS FILE BYTES PAGES INTERVAL_MS   answer every so often: write to so many pages of BYTES
 *                                   of memory, at random, and read a page of the file from the disk
 *   pressed session RECORD USAGE LEVEL AGENTS TOOLS BYTES TOTAL RATE   be "bash" with so many agents, each with so many
 *                                   tools, which sleep, and with BYTES, which it writes to once a second; COUNT agents
 *                                   are there; the agent RUNAWAY, a process id, then grows to TOTAL bytes at RATE
 *
 * RECORD is a file of 8 zeroed 64-bit words, ANSWERS one of pairs (begin, ns of an answer; its end), which is written
 * as a ring; both are mapped shared. grow and the runaway begin when GO is set. All instants are CLOCK_MONOTONIC
 * nanoseconds; zero is what has not happened.
 * Exit status 1 with a line on stderr; it ends with who started it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096L
#define CHUNK (16 * PAGE)
#define SECOND_NS 1000000000LL

enum record { READY_NS, CONDITION_NS, COUNT, RUNAWAY, GO = 6, WORDS = 8 };

/* What the threads of grow write to; `pages` grows. */
static char *memory;
static volatile int64_t pages;

static void fail(const char *what)
{
	fprintf(stderr, "pressed: %s: %s\n", what, strerror(errno));
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

static volatile int64_t *map_shared(const char *path, int64_t *bytes)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat status;
	void *mapped = MAP_FAILED;

	if (fd >= 0 && !fstat(fd, &status))
		mapped = mmap(NULL, status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (mapped == MAP_FAILED)
		fail(path);
	if (bytes)
		*bytes = status.st_size;
	close(fd);
	return mapped;
}

static char *take(int64_t bytes)
{
	char *taken = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (taken == MAP_FAILED)
		fail("mmap");
	madvise(taken, bytes, MADV_NOHUGEPAGE); /* 4 KiB a fault, as most programs */
	return taken;
}

static void write_pages(char *from, int64_t bytes)
{
	for (int64_t offset = 0; offset < bytes; offset += PAGE)
		((volatile char *)from)[offset]++;
}

static uint64_t next_random(uint64_t *state) /* xorshift64 */
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static void *write_at_random(void *seed)
{
	uint64_t state = 88172645463325252ULL + (uintptr_t)seed;

	for (;;)
		((volatile char *)memory)[next_random(&state) % pages * PAGE]++;
	return NULL;
}

static void wait_for_go(volatile int64_t *record)
{
	while (!record[GO])
		sleep_until(now_ns() + 200000);
}

static int64_t usage_bytes(int fd)
{
	char text[32] = "";

	if (pread(fd, text, sizeof(text) - 1, 0) <= 0)
		fail("the node's usage");
	return atoll(text);
}

/* From so many bytes of memory to TOTAL; CONDITION is before the page that takes the usage to the level. */
static _Noreturn void grow_on(volatile int64_t *record, int usage_fd, int64_t level, int64_t from, int64_t total,
			      int64_t rate)
{
	int64_t started_ns = now_ns(), before_ns;

	for (int64_t held = from; held + CHUNK <= total; held += CHUNK) {
		sleep_until(started_ns + (held - from) * (double)SECOND_NS / rate);
		before_ns = now_ns();
		write_pages(memory + held, CHUNK);
		pages = (held + CHUNK) / PAGE;
		if (!record[CONDITION_NS] && usage_bytes(usage_fd) >= level)
			record[CONDITION_NS] = before_ns;
	}
	for (;;)
		pause();
}

static _Noreturn void grow(char **arguments)
{
	volatile int64_t *record = map_shared(arguments[0], NULL);
	int usage_fd = open(arguments[1], O_RDONLY | O_CLOEXEC);
	int64_t level = atoll(arguments[2]), prefill = atoll(arguments[3]), total = atoll(arguments[4]);
	int64_t rate = atoll(arguments[5]), threads = atoll(arguments[6]);
	pthread_t thread;

	if (usage_fd < 0)
		fail(arguments[1]);
	memory = take(total);
	record[READY_NS] = now_ns();
	wait_for_go(record);
	write_pages(memory, prefill);
	pages = prefill / PAGE;
	for (int64_t number = 0; number < threads; number++)
		if (pthread_create(&thread, NULL, write_at_random, (void *)(uintptr_t)number))
			fail("pthread_create");
	grow_on(record, usage_fd, level, prefill, total, rate);
}

static _Noreturn void hold(char **arguments)
{
	volatile int64_t *record = map_shared(arguments[0], NULL);
	int64_t bytes = atoll(arguments[1]);

	memory = take(bytes);
	for (;;) {
		write_pages(memory, bytes);
		if (!record[READY_NS])
			record[READY_NS] = now_ns();
		sleep_until(now_ns() + SECOND_NS);
	}
}

static _Noreturn void probe(char **arguments)
{
	int64_t bytes = atoll(arguments[3]), touched = atoll(arguments[4]), interval_ns = atoll(arguments[5]) * 1000000;
	int64_t answers_bytes, pairs, file_pages;
	volatile int64_t *record = map_shared(arguments[0], NULL), *answers = map_shared(arguments[1], &answers_bytes);
	int fd = open(arguments[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
	uint64_t state = 88172645463325252ULL;
	struct stat status;
	int64_t began_ns;
	void *page;

	if (fd < 0 || fstat(fd, &status) || posix_memalign(&page, PAGE, PAGE))
		fail(arguments[2]);
	pairs = answers_bytes / (2 * sizeof(int64_t));
	file_pages = status.st_size / PAGE;
	memory = take(bytes);
	write_pages(memory, bytes);
	for (int64_t count = 0;; count++) {
		began_ns = now_ns();
		for (int64_t page_number = 0; page_number < touched; page_number++)
			((volatile char *)memory)[next_random(&state) % (bytes / PAGE) * PAGE]++;
		if (pread(fd, page, PAGE, next_random(&state) % file_pages * PAGE) != PAGE)
			fail(arguments[2]);
		answers[count % pairs * 2] = began_ns;
		answers[count % pairs * 2 + 1] = now_ns();
		record[COUNT] = count + 1;
		sleep_until(began_ns + interval_ns);
	}
}

static pid_t forked(void)
{
	pid_t pid = fork();

	if (pid < 0)
		fail("fork");
	return pid;
}

static _Noreturn void be_tool(void)
{
	prctl(PR_SET_NAME, "tool");
	for (;;)
		pause();
}

static _Noreturn void be_agent(volatile int64_t *record, char **arguments, int is_runaway)
{
	int64_t level = atoll(arguments[2]), tools = atoll(arguments[4]), bytes = atoll(arguments[5]);
	int64_t total = atoll(arguments[6]), rate = atoll(arguments[7]);
	int usage_fd = open(arguments[1], O_RDONLY | O_CLOEXEC);

	if (usage_fd < 0)
		fail(arguments[1]);
	prctl(PR_SET_NAME, "agent");
	for (int64_t number = 0; number < tools; number++)
		if (!forked())
			be_tool();
	memory = take(is_runaway ? total : bytes);
	write_pages(memory, bytes);
	if (is_runaway)
		record[RUNAWAY] = getpid();
	__sync_fetch_and_add(&record[COUNT], 1);
	if (is_runaway) {
		wait_for_go(record);
		grow_on(record, usage_fd, level, bytes, total, rate);
	}
	for (;;) {
		sleep_until(now_ns() + SECOND_NS);
		write_pages(memory, bytes);
	}
}

static _Noreturn void session(char **arguments)
{
	volatile int64_t *record = map_shared(arguments[0], NULL);
	int64_t agents = atoll(arguments[3]);

	prctl(PR_SET_NAME, "bash");
	signal(SIGCHLD, SIG_IGN); /* none of them stays a zombie */
	for (int64_t number = 0; number < agents; number++)
		if (!forked())
			be_agent(record, arguments, number == agents / 2);
	while (record[COUNT] < agents)
		sleep_until(now_ns() + 1000000);
	record[READY_NS] = now_ns();
	for (;;)
		pause();
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!strcmp(mode, "grow") && count == 9)
		grow(arguments + 2);
	if (!strcmp(mode, "hold") && count == 4)
		hold(arguments + 2);
	if (!strcmp(mode, "probe") && count == 8)
		probe(arguments + 2);
	if (!strcmp(mode, "session") && count == 10)
		session(arguments + 2);
	fprintf(stderr, "pressed: one of grow, hold, probe, session with their arguments\n");
	return 1;
}
