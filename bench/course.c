// An allocator that follows a course: it grows and shrinks as it is told, and saves its state at SIGTERM.
//
//     course RECORD SAVE_MS SEGMENT...
//
// A segment is SECONDS:MIB, from the size at hand to MIB within SECONDS (0: at full speed). After the last one
// it keeps its size. At SIGTERM it stops growing, reads all that it holds, which takes SAVE_MS at the least,
// and ends with status 0. RECORD gets a line for each: "begin NS", "done NS" (of the segments), "term NS" and
// "saved NS", all on CLOCK_MONOTONIC.
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB (1UL << 20)
#define MOST (64UL << 30)
#define PAGE 4096UL

static volatile sig_atomic_t asked;
static int record;
static uint8_t *memory;
static size_t held;

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void note(const char *what)
{
	char line[64];
	int length = snprintf(line, sizeof line, "%s %llu\n", what, (unsigned long long)now_ns());
	if (write(record, line, length) != length)
		_exit(3);
}

static void on_term(int number)
{
	(void)number;
	asked = 1;
}

static void pause_ms(long ms)
{
	struct timespec pause = { ms / 1000, ms % 1000 * 1000000 };
	nanosleep(&pause, NULL);
}

static void save(long save_ms)
{
	uint64_t began = now_ns();
	volatile uint64_t sum = 0;
	note("term");
	for (size_t at = 0; at < held; at += PAGE)
		sum += memory[at];
	while (now_ns() < began + (uint64_t)save_ms * 1000000)
		pause_ms(1);
	note("saved");
	_exit(0);
}

static void resize(size_t wanted, long save_ms)
{
	wanted &= ~(PAGE - 1);
	for (; held < wanted; held += PAGE) {
		if (asked)
			save(save_ms);
		memory[held] = 1;
	}
	if (wanted < held) {
		madvise(memory + wanted, held - wanted, MADV_DONTNEED);
		held = wanted;
	}
}

int main(int count, char **arguments)
{
	if (count < 4)
		return 2;
	record = open(arguments[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	memory = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (record < 0 || memory == MAP_FAILED)
		return 3;
	long save_ms = atol(arguments[2]);
	signal(SIGTERM, on_term);
	note("begin");
	for (int place = 3; place < count; place++) {
		char *colon = strchr(arguments[place], ':');
		if (!colon)
			return 2;
		double seconds = atof(arguments[place]);
		double from = held, to = atof(colon + 1) * MIB;
		uint64_t began = now_ns();
		for (;;) {
			if (asked)
				save(save_ms);
			double passed = (now_ns() - began) / 1e9;
			double share = seconds > 0 && passed < seconds ? passed / seconds : 1;
			resize(from + (to - from) * share, save_ms);
			if (share >= 1)
				break;
			pause_ms(1);
		}
	}
	note("done");
	while (!asked)
		pause();
	save(save_ms);
}
